"""What a policy gives a critic to read, by hand."""

import pytest
import torch

from dragoman.core.errors import UserError
from dragoman.training.actor import Actor
from dragoman.training.batch import MarkedBatch


def test_a_choice_is_valued_where_its_last_option_is_read_and_a_selection_at_each(tiny_model):
    actor = Actor(tiny_model, None, torch.device("cpu"), bf16=False)
    ids = torch.arange(5, 25).view(2, 10)
    choice, selection = [2, 6], [3, 5, 8]  # where the options of each are read
    batch = MarkedBatch(
        actions=torch.tensor([0, 1]),
        input_ids=ids,
        row=torch.tensor([[0], [1]]),
        position=torch.tensor([[*choice, 0], selection]),
        options=torch.tensor([[True, True, False], [True, True, True]]),
        bias=torch.zeros(2, 3),
        many=torch.tensor([False, True]),
        taken=torch.tensor([[True, False, False], [False, True, False]]),
        mask=torch.tensor([[True, False, False], [True, True, True]]),
    )
    with torch.no_grad():
        states = actor.lm.model(input_ids=ids).last_hidden_state
        features = actor(batch).features
    torch.testing.assert_close(features[0, 0], states[0, choice[-1]])
    torch.testing.assert_close(features[1], states[1, selection])


@pytest.mark.parametrize(
    ("name", "value", "trained"),
    [
        ("final_logit_softcapping", 30.0, False),
        ("logits_scaling", 8.0, False),
        ("logits_scaling", 1.0, True),
        ("layer_types", ["full_attention", "sliding_attention"], False),
        ("layer_types", ["full_attention"] * 2, True),
        ("final_logit_softcapping", None, True),
    ],
)
def test_a_model_whose_own_forward_does_more_is_not_trained_to_write(tiny_model, name, value, trained):
    actor = Actor(tiny_model, None, torch.device("cpu"), bf16=False)
    setattr(actor.lm.config, name, value)
    if trained:
        actor.check_written()
    else:
        with pytest.raises(UserError, match=rf"config.json: {name} is .* score options \(decide: marks\)"):
            actor.check_written()

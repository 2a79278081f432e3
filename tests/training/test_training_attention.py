from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dragoman.training import attention
from dragoman.training.actor import Actor
from dragoman.training.attention import attend, causal_attention
from dragoman.training.settings import AdapterParams


def heads(rows=2, tokens=5, queries=4, groups=2, width=3, **options):
    torch.manual_seed(0)
    shapes = [(rows, count, tokens, width) for count in (queries, groups, groups)]
    return [torch.randn(shape, **options).requires_grad_() for shape in shapes]


def module(**fields):
    return SimpleNamespace(**{"num_key_value_groups": 2, "is_causal": True, "training": True, **fields})


def test_two_tokens_are_weighted_by_hand():
    query, key = torch.tensor([[[[0.0], [2.0]]]]), torch.tensor([[[[0.0], [1.0]]]])
    value = torch.tensor([[[[1.0], [4.0]]]])
    # the first token sees itself; of the second's scores 0 and 2 * 1, the softmax is 0.1192 and 0.8808
    expected = [1.0, 0.1192 * 1 + 0.8808 * 4]
    assert causal_attention(query, key, value).flatten().tolist() == pytest.approx(expected, abs=1e-3)


def test_values_and_gradients_are_those_of_torch_s_kernel():
    ours, theirs = heads(), heads()
    found, weights = attend(module(), *ours, None, scaling=0.4)
    wanted, _ = sdpa_attention_forward(module(), *theirs, None, scaling=0.4)
    assert weights is None and found.shape == (2, 5, 4, 3)
    torch.testing.assert_close(found, wanted)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("why", ["a mask", "not trained", "a long row", "many pairs", "not causal", "wider values"])
def test_what_it_is_not_better_at_is_left_to_torch(why, monkeypatch):
    def never(*args):
        raise AssertionError("our own attention")

    monkeypatch.setattr(attention, "causal_attention", never)
    monkeypatch.setattr(attention, "LONGEST", 4 if why == "a long row" else 640)
    monkeypatch.setattr(attention, "MOST_PAIRS", 199 if why == "many pairs" else 200)  # 2 rows, 4 heads, 5 tokens
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril() if why == "a mask" else None
    layer = module(is_causal=why != "not causal", training=why != "not trained")
    query, key, value = heads()
    if why == "wider values":
        value = torch.randn(2, 2, 5, 7)
    found, _ = attend(layer, query, key, value, mask, scaling=0.4)
    assert found.shape == (2, 5, 4, value.shape[3])


def test_a_policy_that_is_trained_reads_marks_by_it_with_a_gradient_and_without_alike(tiny_model, monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "causal_attention", lambda *args: calls.append(1) or causal_attention(*args))
    actor = Actor(tiny_model, AdapterParams(rank=2), torch.device("cpu"))
    ids = torch.arange(5, 25).view(2, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learning = actor.lm.model(input_ids=ids).last_hidden_state
        with torch.no_grad():
            silent = actor.lm.model(input_ids=ids).last_hidden_state
    assert torch.equal(silent, learning) and len(calls) == 2 * actor.lm.config.num_hidden_layers


def test_a_saved_policy_does_not_ask_for_it(tiny_model, tmp_path):
    Actor(tiny_model, None, torch.device("cpu")).save(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()

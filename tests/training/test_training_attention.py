from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dragoman.training import attention
from dragoman.training.attention import attend, causal_attention


def heads(rows=2, tokens=5, queries=4, groups=2, width=3, **options):
    torch.manual_seed(0)
    shapes = [(rows, count, tokens, width) for count in (queries, groups, groups)]
    return [torch.randn(shape, **options).requires_grad_() for shape in shapes]


def module(**fields):
    return SimpleNamespace(**{"num_key_value_groups": 2, "is_causal": True, **fields})


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


@pytest.mark.parametrize("why", ["a mask", "no gradient", "a long row", "not causal"])
def test_what_it_is_not_better_at_is_left_to_torch(why, monkeypatch):
    def never(*args):
        raise AssertionError("our own attention")

    monkeypatch.setattr(attention, "causal_attention", never)
    monkeypatch.setattr(attention, "LONGEST", 4 if why == "a long row" else 640)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril() if why == "a mask" else None
    with torch.set_grad_enabled(why != "no gradient"):
        found, _ = attend(module(is_causal=False) if why == "not causal" else module(), *heads(), mask, scaling=0.4)
    assert found.shape == (2, 5, 4, 3)

"""What is maximized, by name: values and gradients by hand."""

import math

import pytest
import torch

from dragoman.training.settings import RlParams
from dragoman.training.surrogates import beyond_clip, surrogate

# Two actions: the first of three tokens, the second of two, beside one that the grammar forced.
FREE = torch.tensor([[True, True, True], [True, False, True]])
RATIOS = torch.tensor([[1.5, 0.5, 1.1], [0.5, 1.0, 1.5]])
ADVANTAGES = torch.tensor([[2.0, -1.0, 3.0], [2.0, 5.0, -1.0]])
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, 0.0, -1.5]])


def of(loss: str, ratios=RATIOS, advantages=ADVANTAGES, free=FREE, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective, and the gradient of its sum by the log-probabilities."""
    logprobs = LOGPROBS.clone().requires_grad_()
    old = LOGPROBS - ratios.log()
    objective = surrogate(logprobs, old, advantages, free, RlParams(loss=loss, **settings))
    objective.sum().backward()
    return objective.detach(), logprobs.grad


def rows(*expected: list[float]) -> list:
    return [pytest.approx(row, abs=1e-6) for row in expected]


def test_clip():
    objective, gradient = of("clip")
    # min(3, 2.4), min(-0.5, -0.8), min(3.3, 3.3); min(1, 1.6), forced, min(-1.5, -1.2)
    assert objective.tolist() == rows([2.4, -0.8, 3.3], [1.0, 0.0, -1.5])
    # rho A where it is not clipped
    assert gradient.tolist() == rows([0.0, 0.0, 3.3], [1.0, 0.0, -1.5])


def test_gspo_has_one_ratio_for_an_action():
    first, second = (1.5 * 0.5 * 1.1) ** (1 / 3), math.sqrt(0.5 * 1.5)  # 0.938, 0.866: the forced token is none
    one = torch.tensor([[2.0], [-1.0]])
    objective, gradient = of("gspo", advantages=one)
    expected = rows([2 * first] * 3, [-second, 0.0, -second])
    assert objective.tolist() == expected
    assert gradient.tolist() == expected  # a mean over |o| makes it s A / |o| for each token: the gradient of s A
    objective, gradient = of("gspo", advantages=one, clip=0.1)
    # the first is within 0.1; the second is beyond it, min(-0.866, -0.9), and has no gradient
    assert objective.tolist() == rows([2 * first] * 3, [-0.9, 0.0, -0.9])
    assert gradient.tolist() == rows([2 * first] * 3, [0.0] * 3)


def test_the_gradient_of_gspo_is_that_of_its_ratio():
    logprobs = LOGPROBS[:1].clone().requires_grad_()
    ((logprobs - LOGPROBS[:1] + RATIOS[:1].log()).mean().exp() * 2.0).backward()
    _, gradient = of("gspo", advantages=torch.tensor([[2.0], [0.0]]))
    assert (gradient[:1] / 3).tolist() == rows(*logprobs.grad.tolist())


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    objective, gradient = of("cispo")
    # min(1.5, 1.2) 2, 0.5 (-1), 1.1 * 3; 0.5 * 2, forced, min(1.5, 1.2) (-1)
    weights = [[2.4, -0.5, 3.3], [1.0, 0.0, -1.2]]
    assert gradient.tolist() == rows(*weights)
    assert objective.tolist() == rows([-2.4, 1.0, -9.9], [-0.5, 0.0, 1.8])


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
def test_an_action_whose_ratio_as_a_whole_leaves_the_band_is_left_out(loss):
    ratios = torch.tensor([[2.0, 2.0, 0.5], [0.5, 1.0, 0.9]])  # 2 and 0.45, as a whole
    whole, _ = of(loss, ratios)
    kept, gradient = of(loss, ratios, max_ratio=2.1)
    assert torch.equal(kept[0], whole[0]) and not kept[1].any() and not gradient[1].any()
    kept, gradient = of(loss, 1 / ratios, max_ratio=2.1)
    assert not kept[1].any() and gradient[0].any()


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
def test_at_the_policy_that_drew_it_the_gradient_is_the_advantage(loss):
    _, gradient = of(loss, torch.ones(2, 3))
    assert gradient.tolist() == rows([2.0, -1.0, 3.0], [2.0, 0.0, -1.0])


def test_how_many_are_beyond_the_clip_is_counted_by_the_ratio_that_is_clipped():
    old = LOGPROBS - RATIOS.log()
    assert beyond_clip(LOGPROBS, old, FREE, RlParams()) == 4
    assert beyond_clip(LOGPROBS, old, FREE, RlParams(loss="gspo", clip=0.1)) == 2

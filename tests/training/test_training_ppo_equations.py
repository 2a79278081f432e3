"""The equations, against values computed by hand."""

import math

import pytest
import torch

from dragoman.rollout.samples import Sample
from dragoman.training.algorithms.ppo import (
    generalized_advantages,
    policy_loss,
    role_weights,
    token_rewards,
    tree_values,
    value_loss,
    whiten,
)
from dragoman.training.survey import engine_correction

# Two actions: the first of three tokens, the second of two.
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_the_credit_comes_with_the_last_token_and_the_kl_penalty_with_each():
    old = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -0.5, 0.0]])
    reference = torch.tensor([[-1.5, -2.0, -2.0], [-0.5, -1.0, 0.0]])
    rewards = token_rewards(torch.tensor([0.75, 0.25]), old, reference, MASK, kl_coef=0.1)
    # log-ratios 0.5, 0, -1 and 0, 0.5
    assert rewards.tolist() == [
        pytest.approx([-0.05, 0.0, 0.1 + 0.75]),
        pytest.approx([0.0, -0.05 + 0.25, 0.0]),
    ]


def test_generalized_advantages():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.1, 0.5, 0.0]])
    values = torch.tensor([[0.5, 0.6, 0.8], [0.2, 0.4, 9.0]])  # a value where there is no token must not count
    advantages = generalized_advantages(rewards, values, MASK, gamma=0.9, lam=0.5)
    # first: deltas 0.9 * 0.6 - 0.5 = 0.04, 0.9 * 0.8 - 0.6 = 0.12, 1 - 0.8 = 0.2; gamma lambda = 0.45
    a1 = 0.12 + 0.45 * 0.2
    # second: deltas 0.1 + 0.9 * 0.4 - 0.2 = 0.26, 0.5 - 0.4 = 0.1
    assert advantages.tolist() == [
        pytest.approx([0.04 + 0.45 * a1, a1, 0.2]),
        pytest.approx([0.26 + 0.45 * 0.1, 0.1, 0.0]),
    ]


def test_without_discount_every_token_gets_what_the_action_earned_beyond_its_value():
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    values = torch.tensor([[0.3, 0.5, 0.9]])
    advantages = generalized_advantages(rewards, values, MASK[:1], gamma=1.0, lam=1.0)
    assert advantages.tolist() == [pytest.approx([0.7, 0.5, 0.1])]


def test_clipped_policy_loss():
    old = torch.zeros(2, 3)
    ratios = torch.tensor([[1.5, 0.5, 1.1], [0.5, 1.5, 7.0]])
    advantages = torch.tensor([[2.0, -1.0, 3.0], [2.0, -1.0, 5.0]])
    weights = torch.tensor([1.0, 0.5])
    loss = policy_loss(ratios.log(), old, advantages, torch.ones(2, 3), weights, MASK, clip=0.2)
    # first: min(3, 2.4) + min(-0.5, -0.8) + min(3.3, 3.3); second: min(1, 1.6) + min(-1.5, -1.2), the third is no token
    assert loss.item() == pytest.approx(-(1.0 * (2.4 - 0.8 + 3.3) + 0.5 * (1.0 - 1.5)))


def test_the_importance_of_trainer_to_engine_weights_a_token_and_is_capped():
    trainer = torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    engine = torch.tensor([[-1.0, -3.0, -0.5], [0.0, 0.0, -5.0]])
    correction = engine_correction(trainer, engine, MASK, cap=2.0)
    assert correction.tolist() == [pytest.approx([1.0, 2.0, math.exp(-0.5)]), [1.0, 1.0, 0.0]]
    loss = policy_loss(trainer, trainer, torch.ones(2, 3), correction, torch.ones(2), MASK, clip=0.2)
    assert loss.item() == pytest.approx(-(1 + 2 + math.exp(-0.5) + 1 + 1))


def test_value_loss():
    values = torch.tensor([[0.5, 0.0, 1.0], [1.0, 1.0, 9.0]])
    returns = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert value_loss(values, returns, torch.tensor([1.0, 0.5]), MASK).item() == pytest.approx(1.25 + 0.5)


def drawn(role: str, draws: int = 1, credit: float = 0.0, group: str = "g") -> Sample:
    return Sample(
        episode="e", question="q", node="n", group=group, role=role, kind="K", depth=1, forced=False, prompt_ids=(1,),
        completion_ids=(2,), logprobs=(), temperature=1.0, grammar=None, credit=credit, draws=draws,
    )  # fmt: skip


def test_each_role_counts_once_however_many_actions_it_took():
    weights = role_weights([drawn(role) for role in ("filter", "router", "filter", "filter", "router")])
    assert weights.tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 3, 1 / 3, 1 / 2])


def test_an_action_weighs_as_often_as_it_was_drawn():
    weights = role_weights([drawn("filter", 3), drawn("router"), drawn("filter", 1)])
    assert weights.tolist() == pytest.approx([3 / 4, 1, 1 / 4])


def test_the_tree_values_a_state_at_the_mean_of_what_was_drawn_in_it():
    batch = [
        drawn("filter", 3, credit=1.0, group="a"),
        drawn("router", 1, credit=0.5, group="b"),
        drawn("filter", 1, credit=0.0, group="a"),
    ]
    assert tree_values(batch).tolist() == pytest.approx([0.75, 0.5, 0.75])


def test_whitened_advantages():
    whitened = whiten(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]]), MASK)
    assert whitened[MASK].mean().item() == pytest.approx(0, abs=1e-6)
    assert whitened[MASK].std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert whitened[1, 2] == 0

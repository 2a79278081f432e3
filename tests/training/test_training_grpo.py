"""GRPO: its equation against values worked out by hand, and the groups it drops."""

import dataclasses
import math

import pytest
import torch
from toy import SETTINGS, make_run

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import MicroBatch
from dragoman.training.algorithms.grpo import (
    ALGORITHM,
    Experience,
    divergence,
    group_advantages,
    group_weights,
    loss,
)
from dragoman.training.learner import Learner
from dragoman.training.selection import with_contrast
from dragoman.training.settings import RlParams


def drawn(group: str, credit: float, draws: int = 1, **changes) -> Sample:
    plain = Sample(
        episode="e", question="q", node="n", group=group, role="filter", kind="K", depth=1, forced=False, prompt_ids=(1,),
        completion_ids=(2,), logprobs=(), temperature=1.0, grammar=None, credit=credit, draws=draws,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


# Group a was drawn four times, three of them alike; group b twice.
BATCH = [drawn("a", 1.0, draws=3), drawn("b", 0.5), drawn("a", 0.0), drawn("b", 0.25)]


def test_an_advantage_is_counted_in_standard_deviations_from_the_group_s_mean():
    # a: mean 3/4, variance (3 (1/4)^2 + (3/4)^2) / 4 = 3/16; b: mean 3/8, deviation 1/8
    expected = [1 / math.sqrt(3), 1.0, -math.sqrt(3), -1.0]
    assert group_advantages(BATCH, least=0.1).tolist() == pytest.approx(expected, abs=1e-4)


def test_a_group_without_contrast_has_no_advantage_and_is_dropped():
    even = [drawn("c", 0.3), drawn("c", 0.3), drawn("d", 1.0, draws=4)]
    assert group_advantages(even, least=0.1).tolist() == [0.0, 0.0, 0.0]
    assert with_contrast([*BATCH, *even]) == BATCH


def test_a_price_is_not_amplified_to_the_strength_of_right_against_wrong():
    # both right, in 4 and 6 steps of 0.002
    advantages = group_advantages([drawn("a", 0.992), drawn("a", 0.988)], least=0.1)
    assert advantages.tolist() == pytest.approx([0.02, -0.02], abs=1e-5)


def test_siblings_that_were_listed_count_by_their_probability():
    listed = [drawn("a", 1.0, probability=0.2), drawn("a", 0.0, probability=0.6)]
    # mean 1/4, variance 1/4 (3/4)^2 + 3/4 (1/4)^2 = 3/16
    assert group_advantages(listed, least=0.1).tolist() == pytest.approx([math.sqrt(3), -1 / math.sqrt(3)])
    assert group_weights([*listed, drawn("b", 0.0)]).tolist() == pytest.approx([1 / 8, 3 / 8, 1 / 2])


def test_each_group_counts_once_and_each_of_its_draws_the_same():
    assert group_weights(BATCH).tolist() == pytest.approx([3 / 8, 1 / 4, 1 / 8, 1 / 4])


def test_the_divergence_is_estimated_from_what_was_drawn():
    logprobs = torch.tensor([[-1.0, -1.0, -1.0]])
    reference = logprobs + torch.tensor([[0.0, math.log(2), -math.log(2)]])
    expected = [0.0, 2 - math.log(2) - 1, 0.5 + math.log(2) - 1]
    assert divergence(logprobs, reference).tolist() == [pytest.approx(expected, abs=1e-6)]


def test_the_divergence_is_unbiased():
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = (policy * divergence(policy.log(), reference.log())).sum()
    assert expected.item() == pytest.approx(float((policy * (policy / reference).log()).sum()), abs=1e-6)


# Two actions: the first of three tokens, the second of two.
FREE = torch.tensor([[True, True, True], [True, True, False]])


def step(logprobs, old, reference, advantages, weights, correction, **settings):
    experience = Experience(old, reference, correction, advantages, weights)
    return loss(MicroBatch(logprobs, None, FREE, 5), experience, RlParams(**settings))


def test_the_loss_on_three_tokens():
    ratios = torch.tensor([[1.5, 0.5, 1.1], [0.5, 1.5, 7.0]])
    reference = ratios.log() + torch.tensor([[math.log(2), 0.0, 0.0], [0.0, 0.0, 5.0]])
    value, figures = step(
        ratios.log(),
        torch.zeros(2, 3),
        reference,
        torch.tensor([2.0, -1.0]),
        torch.tensor([0.5, 0.25]),
        torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.5, 3.0]]),
        grpo={"kl_coef": 0.1},
    )
    # min(3, 2.4) + min(1, 1.6) + min(2.2, 2.2), less 0.1 (2 - ln 2 - 1); a third of it, and half of that
    first = 0.5 * (2.4 + 1.0 + 2.2 - 0.1 * (1 - math.log(2))) / 3
    # min(-0.5, -0.8) + 0.5 min(-1.5, -1.2); the third is no token
    second = 0.25 * (-0.8 + 0.5 * -1.5) / 2
    assert value.item() == pytest.approx(-(first + second), abs=1e-6)
    assert figures["clip_fraction"] == 4 / 5


def test_the_divergence_pulls_back_to_the_warm_up():
    """Without an advantage, the gradient is that of the divergence alone: 1 - pi_ref / pi of each token."""
    logprobs = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]], requires_grad=True)
    reference = logprobs.detach() + torch.tensor([[math.log(2), 0.0, -math.log(2)], [math.log(3), 0.0, 9.0]])
    value, _ = step(
        logprobs, logprobs.detach(), reference, torch.zeros(2), torch.ones(2), torch.ones(2, 3), grpo={"kl_coef": 0.1}
    )
    value.backward()
    assert logprobs.grad.tolist() == [
        pytest.approx([0.1 * (1 - 2) / 3, 0.0, 0.1 * (1 - 0.5) / 3], abs=1e-6),
        pytest.approx([0.1 * (1 - 3) / 2, 0.0, 0.0], abs=1e-6),
    ]


def test_at_the_policy_that_drew_it_the_gradient_is_that_of_the_weighted_log_probabilities():
    logprobs = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]], requires_grad=True)
    old = logprobs.detach()
    value, _ = step(logprobs, old, old, torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.5]), torch.ones(2, 3))
    value.backward()
    assert logprobs.grad.tolist() == [[pytest.approx(-1 / 6)] * 3, [pytest.approx(1 / 4), pytest.approx(1 / 4), 0.0]]


def test_single_trajectories_are_refused(tiny_model, runtime, tmp_path):
    with pytest.raises(UserError, match=r"raise rl\.exploration\.breadth"):
        make_run("grpo", tiny_model, runtime, tmp_path / "rl", exploration=SETTINGS.single().exploration)


async def test_where_every_group_is_dropped_nothing_is_learnt_and_the_run_goes_on(tiny_model, runtime, tmp_path):
    hopeless = [Question(f"h{i}", f"Which arm, number {i}?", ("neither",)) for i in range(2)]
    run = make_run("grpo", tiny_model, runtime, tmp_path / "rl", asked=hopeless, iterations=2)
    before = run.learner.actor.state()
    metrics = await run.train()
    assert [(r["groups"], r["dropped_groups"], r["actions"]) for r in run.history] == [(2, 2, 0)] * 2
    assert metrics["iterations"] == 2 and not metrics["stopped"]
    assert all(torch.equal(before[name], weights) for name, weights in run.learner.actor.state().items())


async def test_dropped_groups_are_counted(tiny_model, runtime, tmp_path):
    """A toy tree has one state; of those in which both arms were drawn, both are learnt."""
    exploration = Exploration(breadth=(2,), force=0)
    run = make_run("grpo", tiny_model, runtime, tmp_path / "rl", iterations=1, questions=6, exploration=exploration)
    await run.train()
    (row,) = run.history
    assert row["groups"] == 6 and row["actions"] == 2 * (6 - row["dropped_groups"])
    assert row["dropped_groups"] == sum(r in (0.0, 1.0) for r in tree_rewards(tmp_path / "rl"))


def tree_rewards(out):
    from dragoman.rollout.store import read_episodes

    episodes = read_episodes(out / "rollouts/0000/episodes.jsonl")
    return [sum(t.rewards["cover_em"] for t in e.trajectories) / len(e.trajectories) for e in episodes]


def test_without_length_norm_an_action_counts_by_the_sum_over_its_tokens(tiny_model, toy_samples):
    weights, tokens = [], None
    for length_norm in (True, False):
        grpo = SETTINGS.grpo.model_copy(update={"length_norm": length_norm})
        own = Learner(ALGORITHM, tiny_model, SETTINGS.model_copy(update={"grpo": grpo}), seed=0)
        tokens = own.survey(toy_samples).free.sum(1)
        weights.append(own.prepare(toy_samples)[0].weights)
    assert tokens.max() > 1
    torch.testing.assert_close(weights[1], weights[0] * tokens)

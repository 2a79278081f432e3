"""GRPO over whole trajectories: its advantages and weights against values worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
from toy import SETTINGS, make_run

from dragoman.core.errors import UserError
from dragoman.rollout.samples import Sample, read_samples
from dragoman.training.algorithms.trajectory_grpo import trajectory_advantages, trajectory_weights
from dragoman.training.selection import with_contrast


def acted(question: str, trajectory: str, reward: float) -> Sample:
    return Sample(
        episode=trajectory, question=question, node="n", group=f"{trajectory}/n", role="filter", kind="K", depth=1,
        forced=False, prompt_ids=(1,), completion_ids=(2,), logprobs=(), temperature=1.0, grammar=None, credit=reward,
    )  # fmt: skip


# Question a: a trajectory of two actions that was right, and one of a single action that was not. Question b: both right.
RIGHT, WRONG = acted("a", "a0", 1.0), acted("a", "a1", 0.0)
EVEN = [acted("b", "b0", 1.0), acted("b", "b1", 1.0)]
BATCH = [RIGHT, replace(RIGHT, node="m", group="a0/m"), WRONG, *EVEN]


def test_every_action_has_the_advantage_of_its_trajectory():
    # a: of trajectories 1 and 0 the mean is 1/2 and the deviation 1/2; a trajectory counts once, however long it is
    assert trajectory_advantages(BATCH, least=0.1).tolist() == [1.0, 1.0, -1.0, 0.0, 0.0]


def test_a_small_difference_is_not_amplified_to_right_against_wrong():
    near = [acted("a", "a0", 0.99), acted("a", "a1", 1.01)]
    assert trajectory_advantages(near, least=0.1).tolist() == pytest.approx([-0.1, 0.1], abs=1e-5)


def test_questions_trajectories_and_tokens_of_one_count_alike():
    weights = trajectory_weights(BATCH, torch.tensor([1, 3, 2, 5, 5]))
    assert weights.tolist() == pytest.approx([1 / 16, 3 / 16, 1 / 4, 1 / 4, 1 / 4])
    assert math.isclose(float(weights.sum()), 1)


def test_a_question_whose_trajectories_earned_the_same_is_dropped():
    assert with_contrast(BATCH, among=lambda sample: sample.question) == BATCH[:3]


async def test_a_question_has_as_many_trajectories_as_the_group(tiny_model, runtime, tmp_path):
    grpo = SETTINGS.grpo.model_copy(update={"group": 8})
    run = make_run("trajectory_grpo", tiny_model, runtime, tmp_path / "rl", iterations=1, questions=6, grpo=grpo)
    await run.train()
    row = run.history[0]
    assert (row["trajectories"], row["groups"]) == (48, 6)
    learnt = read_samples(tmp_path / "rl/samples.parquet")
    assert len({sample.question for sample in learnt}) == row["groups"] - row["dropped_groups"] > 0
    for question in {sample.question for sample in learnt}:
        assert {sample.raw_credit for sample in learnt if sample.question == question} == {0.0, 1.0}


def test_a_group_of_one_is_refused(tiny_model, runtime, tmp_path):
    grpo = SETTINGS.grpo.model_copy(update={"group": 1})
    with pytest.raises(UserError, match=r"rl\.grpo\.group"):
        make_run("trajectory_grpo", tiny_model, runtime, tmp_path / "rl", grpo=grpo)

"""GRPO over whole trajectories, as Mujica-MyGO compares itself with (eq. 4 and section 4.3.3; Shao et al. 2024).

A group is some single trajectories of one question. All actions of a trajectory share its advantage, whatever each of them
did. `grpo` beside it compares the siblings of a tree instead, state by state.

1. Draw G trajectories of each question.
2. Drop the questions whose trajectories all earned the same, since they say nothing, and count them.
3. Take as advantage how far a trajectory's reward lies from its group's mean, in standard deviations.
4. Weigh actions so that the loss is a mean over questions, over trajectories, and over a trajectory's tokens.
5. Take optimizer steps on the clipped surrogate less the divergence from the warm-up, as `grpo` does.

Shapes: a actions, of at most m tokens each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected
from dragoman.training.algorithms.grpo import Experience, loss
from dragoman.training.selection import with_contrast
from dragoman.training.settings import RlParams
from dragoman.training.survey import engine_correction

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of the trajectories that differ from others of their question. There may be none."""
    # 1.
    s, episodes = loop.settings, list[Episode]()
    for draw in range(s.grpo.group):
        episodes += await loop.draw(questions, draw)
    found = loop.samples(episodes)
    fitting = loop.fitting(found)
    # 2.
    batch = with_contrast(fitting, among=lambda sample: sample.question)
    groups, kept = len({x.question for x in found}), len({x.question for x in batch})
    figures = {"too_long": len(found) - len(fitting), "groups": groups, "dropped_groups": groups - kept}
    return Collected(episodes, batch, figures)


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
    """Old and reference log-probabilities, and how each action's trajectory compares with the others of its question."""
    s, seen = learner.settings, learner.survey(batch)
    correction = engine_correction(seen.old, seen.engine, seen.free, cap=s.importance_cap)
    # 3. and 4.
    advantages, weights = trajectory_advantages(batch, least=s.min_std), trajectory_weights(batch, seen.free.sum(1))
    return Experience(seen.old, seen.reference, correction, advantages, weights), seen.figures(batch)


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: a group of one.
    """
    if settings.grpo.group < 2:
        raise UserError("trajectory_grpo compares trajectories of a question: set rl.grpo.group to 2 or more")


def trajectory_advantages(batch: Sequence[Sample], *, least: float) -> Tensor:
    """[a] A_i = (R_i - mean(R)) / std(R) of each action's trajectory i, over those of its question (below eq. 4).

    Args:
        least: that is divided by, as for `grpo`.
    """
    advantages = torch.zeros(len(batch))
    for trajectories in _questions(batch):
        rewards = torch.tensor([batch[actions[0]].credit for actions in trajectories])
        distances = (rewards - rewards.mean()) / rewards.std(correction=0).clamp(min=least)
        for actions, distance in zip(trajectories, distances, strict=True):
            advantages[actions] = distance
    return advantages


def trajectory_weights(batch: Sequence[Sample], tokens: Tensor) -> Tensor:
    """[a] 1/Q 1/G |a|/|o|: questions count alike, in one its trajectories, and in one of those its tokens.

    `grpo_loss` takes the mean over an action's tokens, so an action weighs as much as its tokens have of the trajectory's.

    Args:
        tokens: [a] |a|, free ones of each action.
    """
    weights, questions = torch.zeros(len(batch)), list(_questions(batch))
    for trajectories in questions:
        for actions in trajectories:
            share = tokens[actions] / tokens[actions].sum().clamp(min=1)
            weights[actions] = share / (len(questions) * len(trajectories))
    return weights


def _questions(batch: Sequence[Sample]) -> Iterator[list[list[int]]]:
    """The places of a batch's actions by question, and there by trajectory. A single trajectory is an episode."""
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, sample in enumerate(batch):
        places[sample.question][sample.episode].append(i)
    for trajectories in places.values():
        yield list(trajectories.values())


ALGORITHM = Algorithm(
    "trajectory_grpo",
    collect,
    prepare,
    loss,
    needs_reference=lambda settings: settings.grpo.kl_coef > 0,
    check=check,
)

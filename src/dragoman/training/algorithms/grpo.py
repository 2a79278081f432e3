"""GRPO on the siblings of trees (Shao et al. 2024).

A group is the actions drawn at one state, which a tree has at every depth. Their rewards are their credits, so no critic
is needed.

1. Roll out a tree for each question, and credit each action with the mean reward below it.
2. Drop the groups that earned equal rewards, since they say nothing, and count them.
3. Take as advantage how far a credit lies from its group's mean, in standard deviations (section 4.1.2).
4. Weigh actions so that the loss of an iteration is a mean over its groups.
5. Take optimizer steps on the clipped surrogate less the divergence from the warm-up (eq. 3 and 4).

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token, or one that is not free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected, MicroBatch
from dragoman.training.selection import siblings, with_contrast
from dragoman.training.settings import RlParams
from dragoman.training.surrogates import beyond_clip, surrogate
from dragoman.training.survey import engine_correction, sibling_means, sibling_shares

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


class Experience(NamedTuple):
    """What GRPO adds to a batch of actions, constant while it learns."""

    old: Tensor
    """[a, m]"""
    reference: Tensor
    """[a, m]"""
    correction: Tensor
    """[a, m]"""
    advantages: Tensor
    """[a]"""
    weights: Tensor
    """[a]"""


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of the groups that have a contrast. There may be none: the policy does all well, or nothing."""
    # 1.
    episodes = await loop.roll_out(questions)
    found = loop.samples(episodes)
    fitting = loop.fitting(found)
    # 2.
    batch = with_contrast(fitting)
    kept = len(siblings(batch))
    drawn = [sum(found[i].draws for i in group) for group in siblings(found)]
    groups = sum(count > 1 for count in drawn)  # a single draw has nothing beside it
    figures = {"too_long": len(found) - len(fitting), "groups": groups, "dropped_groups": groups - kept}
    return Collected(episodes, batch, figures)


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
    """Old and reference log-probabilities, and how each action compares with its siblings."""
    s, seen = learner.settings, learner.survey(batch)
    batch = seen.informed(batch)
    correction = engine_correction(seen.old, seen.engine, seen.free, cap=s.importance_cap)
    # 3. and 4.
    advantages, weights = group_advantages(batch, least=s.min_std), group_weights(batch)
    if not s.grpo.length_norm:
        weights = weights * seen.free.sum(1)  # which the loss divides by
    return Experience(seen.old, seen.reference, correction, advantages, weights), seen.figures(batch)


def loss(micro: MicroBatch, experience: Experience, settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """-J_GRPO (eq. 3)."""
    # 5.
    old, reference, correction, advantages, weights = experience
    objective = correction * surrogate(micro.logprobs, old, advantages[:, None], micro.free, settings)
    objective = objective - settings.grpo.kl_coef * divergence(micro.logprobs, reference)
    value = grpo_loss(objective, weights, micro.free)
    return value, {
        "policy_loss": float(value.detach()),
        "clip_fraction": beyond_clip(micro.logprobs, old, micro.free, settings) / micro.tokens,
    }


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: the exploration has no siblings.
    """
    if not settings.exploration.has_siblings:
        raise UserError("grpo compares siblings, and single trajectories have none: raise rl.exploration.breadth")


def group_advantages(batch: Sequence[Sample], *, least: float) -> Tensor:
    """[a] A_i = (r_i - mean(r)) / std(r) over each group, whose siblings count by their shares.

    Args:
        least: that is divided by. Else a price, or one lucky leaf of a large tree, would count as much as right against wrong.
    """
    credits = torch.tensor([x.credit for x in batch])
    distance = credits - sibling_means(batch, credits)
    return distance / sibling_means(batch, distance**2).sqrt().clamp(min=least)


def group_weights(batch: Sequence[Sample]) -> Tensor:
    """[a] weights that make a weighted sum over an iteration's actions the mean over groups, of which siblings have shares."""
    return sibling_shares(batch) / len(siblings(batch))


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """[a, m] D_KL(pi || pi_ref), estimated without bias and never below 0 (Shao et al. 2024, eq. 4).

    pi_ref / pi - log(pi_ref / pi) - 1, of each token.
    """
    ratio = reference - logprobs
    return ratio.exp() - ratio - 1


def grpo_loss(objective: Tensor, weights: Tensor, free: Tensor) -> Tensor:
    """The objective J_GRPO, as a loss (eq. 3): -sum over i of w_i 1/|o_i| sum over m of the objective of token m.

    Args:
        objective: [a, m] the surrogate less beta D_KL.
        weights: [a] w, see `group_weights`.
        free: [a, m] bool; |o_i| is its sum over m.

    Returns:
        A scalar.
    """
    return -(weights * (objective * free).sum(1) / free.sum(1).clamp(min=1)).sum()


ALGORITHM = Algorithm(
    "grpo",
    collect,
    prepare,
    loss,
    needs_reference=lambda settings: settings.grpo.kl_coef > 0,
    check=check,
)

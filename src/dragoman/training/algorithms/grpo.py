"""GRPO on the siblings of trees (Shao et al. 2024; the reference algorithm of Mujica-MyGO, eq. 4 and section 4.3.3).

A group is the actions drawn at one state, which a tree has at every depth. Their rewards are their credits, so no critic
is needed.

1. Roll out a tree for each question, and credit each action with the mean reward below it.
2. Drop the groups whose credits are all equal, since they say nothing, and count them.
3. Take as advantage how far a credit lies from its group's mean, in standard deviations (section 4.1.2).
4. Weigh actions so that the loss is a mean over groups.
5. Take optimizer steps on the clipped surrogate less the divergence from the warm-up (eq. 3 and 4).

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import Algorithm, Collected, MicroBatch
from dragoman.training.selection import with_contrast
from dragoman.training.settings import RlParams
from dragoman.training.survey import engine_correction

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


async def collect(loop: Loop, questions: Sequence[Question]) -> Collected:
    """The actions of the groups that have a contrast. There may be none: the policy does all well, or nothing."""
    # 1.
    episodes = await loop.roll_out(questions)
    found = loop.samples(episodes)
    fitting = loop.fitting(found)
    # 2.
    batch = with_contrast(fitting)
    groups, kept = len({x.group for x in found}), len({x.group for x in batch})
    figures = {"too_long": len(found) - len(fitting), "groups": groups, "dropped_groups": groups - kept}
    return Collected(episodes, batch, figures)


def prepare(learner: Learner, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
    """Old and reference log-probabilities, and how each action compares with its siblings."""
    seen = learner.survey(batch)
    correction = engine_correction(seen.raw, seen.engine, seen.mask, cap=learner.settings.importance_cap)
    # 3.
    return Experience(seen.old, seen.reference, correction, group_advantages(batch)), seen.figures()


def loss(micro: MicroBatch, experience: Experience, settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """-J_GRPO (eq. 3)."""
    # 5.
    old, reference, correction, advantages = experience
    value = grpo_loss(
        micro.logprobs,
        old,
        reference,
        advantages,
        correction,
        micro.weights,
        micro.mask,
        clip=settings.clip,
        kl_coef=settings.grpo.kl_coef,
    )
    beyond = ((micro.logprobs.detach() - old).exp() - 1).abs() > settings.clip
    return value, {
        "policy_loss": float(value.detach()),
        "clip_fraction": float((beyond & micro.mask).sum()) / micro.tokens,
    }


def check(settings: RlParams) -> None:
    """
    Raises:
        UserError: the exploration has no siblings.
    """
    if max(settings.exploration.breadth) == 1 and not settings.exploration.force:
        raise UserError("grpo compares siblings, and single trajectories have none: raise rl.exploration.breadth")


def group_advantages(batch: Sequence[Sample]) -> Tensor:
    """[a] A_i = (r_i - mean(r)) / std(r) over the draws of each group, equal draws being merged in a tree."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in batch:
        groups[sample.group].append(sample)
    mean, std = {}, {}
    for name, siblings in groups.items():
        draws = sum(x.draws for x in siblings)
        mean[name] = sum(x.draws * x.credit for x in siblings) / draws
        std[name] = (sum(x.draws * (x.credit - mean[name]) ** 2 for x in siblings) / draws) ** 0.5
    return torch.tensor([(x.credit - mean[x.group]) / (std[x.group] + 1e-6) for x in batch])


def group_weights(actions: Sequence[Sample]) -> Tensor:
    """[a] weights that make a weighted sum over actions the mean over groups of the mean over each group's draws."""
    draws: dict[str, int] = defaultdict(int)
    for action in actions:
        draws[action.group] += action.draws
    return torch.tensor([action.draws / (draws[action.group] * len(draws)) for action in actions])


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """[a, m] D_KL(pi || pi_ref), estimated without bias and never below 0 (Shao et al. 2024, eq. 4).

    pi_ref / pi - log(pi_ref / pi) - 1, of each token.
    """
    ratio = reference - logprobs
    return ratio.exp() - ratio - 1


def grpo_loss(
    logprobs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    correction: Tensor,
    weights: Tensor,
    mask: Tensor,
    *,
    clip: float,
    kl_coef: float,
) -> Tensor:
    """The objective J_GRPO, as a loss (eq. 3).

    -sum over i of w_i 1/|o_i| sum over m of min(rho A_i, clip(rho, 1 - epsilon, 1 + epsilon) A_i) - beta D_KL

    Args:
        logprobs: [a, m] under the policy that is trained.
        old: [a, m] under the policy that drew the actions; rho is the ratio of the two.
        reference: [a, m] under the reference policy, the warm-up.
        advantages: [a] see `group_advantages`.
        correction: [a, m] importance of trainer to engine, see `engine_correction`.
        weights: [a] w, see `group_weights`.
        mask: [a, m] bool; |o_i| is its sum over m.
        clip: epsilon.
        kl_coef: beta.

    Returns:
        A scalar.
    """
    ratio, advantages = (logprobs - old).exp(), advantages[:, None]
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    objective = correction * surrogate - kl_coef * divergence(logprobs, reference)
    return -(weights * (objective * mask).sum(1) / mask.sum(1)).sum()


ALGORITHM = Algorithm(
    "grpo",
    collect,
    prepare,
    loss,
    weigh=group_weights,  # 4.
    needs_reference=lambda settings: settings.grpo.kl_coef > 0,
    check=check,
)

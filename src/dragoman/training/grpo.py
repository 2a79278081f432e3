"""GRPO on the siblings of trees (Shao et al. 2024, eq. 3; the reference algorithm of Mujica-MyGO, eq. 4 and section 4.3.3).

A group are the actions drawn at one state, which a tree has at every depth; their rewards are their credits. What an action
is worth is how far its credit lies from the mean of its group, in standard deviations: no critic is needed, and a group
whose credits are all equal says nothing, so it is dropped, and counted.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.samples import Sample
from dragoman.training.learner import PolicyLearner, engine_correction
from dragoman.training.loop import Collected, Loop, with_contrast
from dragoman.training.settings import RlParams


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
    """The objective J_GRPO, as a loss.

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


@dataclass(frozen=True)
class Experience:
    """What GRPO adds to a batch of actions before it learns from them."""

    old: Tensor
    """[a, m]"""
    reference: Tensor
    """[a, m]"""
    correction: Tensor
    """[a, m]"""
    advantages: Tensor
    """[a]"""


class Learner(PolicyLearner[Experience]):
    """A policy and its reference, and the two things GRPO does with a batch of actions.

    Raises:
        UserError: the exploration has no siblings.
    """

    def __init__(self, warm_up: Path, settings: RlParams, *, seed: int) -> None:
        if max(settings.exploration.breadth) == 1 and not settings.exploration.force:
            raise UserError("grpo compares siblings, and single trajectories have none: raise rl.exploration.breadth")
        super().__init__(warm_up, settings, seed=seed)
        if settings.grpo.kl_coef:
            self.open_reference()

    def appraise(self, batch: Sequence[Sample]) -> tuple[Experience, dict[str, float]]:
        """Old and reference log-probabilities, and how each action compares with its siblings."""
        seen = self.survey(batch, reference=bool(self.settings.grpo.kl_coef))
        correction = engine_correction(seen.raw, seen.engine, seen.mask, cap=self.settings.importance_cap)
        return Experience(seen.old, seen.reference, correction, group_advantages(batch)), seen.figures()

    def step(self, batch: Sequence[Sample], indices: Sequence[int], experience: Experience) -> dict[str, float]:
        """One optimizer step on J_GRPO, in micro-batches whose gradients add up."""
        s = self.settings
        weights = torch.zeros(len(batch))
        weights[list(indices)] = group_weights([batch[i] for i in indices])
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = defaultdict(float)
        for micro in self.batches(batch, indices):
            width = micro.mask.shape[1]
            mask = micro.mask.to(self.actor.device)
            old, reference, correction = (
                tensor[micro.actions, :width].to(mask.device)
                for tensor in (experience.old, experience.reference, experience.correction)
            )
            advantages, weight = (x[micro.actions].to(mask.device) for x in (experience.advantages, weights))
            logprobs = self.actor(micro, s.exploration.temperature).logprobs
            loss = grpo_loss(
                logprobs, old, reference, advantages, correction, weight, mask, clip=s.clip, kl_coef=s.grpo.kl_coef
            )
            loss.backward()
            ratio = (logprobs.detach() - old).exp()
            totals["policy_loss"] += float(loss.detach())
            totals["clipped"] += float((((ratio - 1).abs() > s.clip) & mask).sum())
            totals["tokens"] += float(mask.sum())
        norm = self.apply_gradients()
        return {
            "policy_loss": totals["policy_loss"],
            "clip_fraction": totals["clipped"] / totals["tokens"],
            "grad_norm": norm,
        }


class Run(Loop):
    """Iterate: roll out trees with the current policy, compare siblings, learn."""

    algorithm = "grpo"
    learner_type = Learner

    async def collect(self, questions: Sequence[Question]) -> Collected:
        """The actions of the groups that have a contrast. There may be none: the policy does all well, or nothing."""
        episodes = await self.grow_trees(questions)
        found = self.samples(episodes)
        fitting = self.fitting(found)
        batch = with_contrast(fitting)
        groups, kept = len({x.group for x in found}), len({x.group for x in batch})
        figures = {"too_long": len(found) - len(fitting), "groups": groups, "dropped_groups": groups - kept}
        return Collected(episodes, batch, figures)

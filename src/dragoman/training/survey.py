"""What the models say about a batch of actions before anything is learnt from it.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.rollout.credit import shares
from dragoman.rollout.samples import Sample
from dragoman.training.selection import siblings


@dataclass(frozen=True)
class Survey:
    """Log-probabilities and values of a batch of actions. All are [a, m], on the CPU.

    Engines compute with weights that were rounded to bfloat16 when they were read. The trainer's frozen weights are rounded
    alike, so before the first step policy, reference and engine agree. Later `engine` also holds the rounding of the sum of
    frozen and trained weights, which `engine_correction` makes up for.
    """

    old: Tensor
    """Log-probabilities under the policy that drew the actions."""
    entropy: Tensor
    reference: Tensor
    """As `old`, under the warm-up; `old` itself where the algorithm needs no reference."""
    values: Tensor
    """The critic's; 0 without one."""
    engine: Tensor
    """As `old`, as the engine reported them; `old` itself where it did not."""
    reported: Tensor
    """bool: the engine did."""
    free: Tensor
    """bool: there is such a token, and the grammar left a choice. What is said of a policy is said of these: the others have
    probability 1."""

    def informed(self, batch: Sequence[Sample]) -> list[Sample]:
        """The batch, with what each written action that was forced stands for: the old policy's probability of its kind.

        Siblings of every kind, drawn by force, are no sample of the policy. It would have taken a kind with pi(kind), and what is
        written of that kind was drawn as it would have written it: by pi(text | kind), which is what the engine reported, under the
        grammar of the kind alone. So pi(kind) is pi(text) / pi(text | kind), by the grammar of all kinds over that of one; the draws
        of a kind share it. Where the engine reported nothing, it is the probability of the whole text.
        """
        draws: Counter[tuple[str, str]] = Counter()
        for x in batch:
            draws[x.group, x.kind] += x.draws
        return [
            dataclasses.replace(x, probability=_of_kind(x, written) * x.draws / draws[x.group, x.kind])
            if x.forced and x.marks is None
            else x
            for x, written in zip(batch, self.old.double().sum(1).tolist(), strict=True)
        ]

    def figures(self, batch: Sequence[Sample]) -> dict[str, float]:
        """What it says about the health of a run, by the names of the history's columns. Without a reference there is no `kl`.

        The distance to the reference is the mean log-ratio under the policy, a free token. Siblings are not drawn as often as
        the policy would, where all options of a state are listed: they count by their shares, or what the
        policy has left behind would weigh as much as what it now does, and the distance could be negative.

        Args:
            batch: the actions, as `informed` gives them.
        """
        each = sibling_shares(batch)[:, None] * self.free
        difference = (self.old - self.engine)[self.free & self.reported]
        ratios = difference.exp().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist() if len(difference) else [1.0] * 3
        distance = (each * (self.old - self.reference)).sum() / each.sum().clamp(min=1e-9)
        return {
            **({} if self.reference is self.old else {"kl": float(distance)}),
            "entropy": _mean(self.entropy[self.free]),
            "engine_difference": float(difference.abs().mean()) if len(difference) else 0.0,
            **{f"engine_ratio_{q}": r for q, r in zip(("p05", "p50", "p95"), ratios, strict=True)},
        }


def sibling_shares(batch: Sequence[Sample]) -> Tensor:
    """[a] how much each action counts among its siblings; those of a state add up to 1. See `credit.shares`."""
    share = torch.zeros(len(batch))
    for group in siblings(batch):
        share[group] = torch.tensor(shares([batch[i] for i in group]))
    return share


def sibling_means(batch: Sequence[Sample], values: Tensor) -> Tensor:
    """[a] the mean of `values`, [a], over each action's siblings, by their shares."""
    means, weighted = torch.zeros(len(batch)), sibling_shares(batch) * values
    for group in siblings(batch):
        means[group] = weighted[group].sum()
    return means


def _of_kind(sample: Sample, written: float) -> float:
    """The policy's probability of the kind of a forced action, of whose text it has the log-probability `written`.

    To a thousandth, since the last bits of what an engine reports depend on what else was in its batch. A run that is killed and
    goes on is to come to the same weights.
    """
    if len(sample.logprobs) != sample.length:
        return math.exp(written)
    return math.exp(min(0.0, round(written - sum(sample.logprobs), 3)))


def _mean(values: Tensor) -> float:
    """0 where there are none: every token was forced."""
    return float(values.mean()) if len(values) else 0.0


def engine_logprobs(batch: Sequence[Sample], own: Tensor) -> tuple[Tensor, Tensor]:
    """The engine's log-probabilities as [a, m], with `own` where it reported none, and where it did report.

    What it reported of a written action that was forced is left out: it was drawn under the grammar of its kind alone, and is
    weighed by the trainer's own probability of it; see `Survey.informed`.
    """
    engine, reported = own.clone(), torch.zeros(own.shape, dtype=torch.bool)
    for i, sample in enumerate(batch):
        own_kind_alone = sample.forced and sample.marks is None
        if len(sample.logprobs) == sample.length and not own_kind_alone:
            engine[i, : len(sample.logprobs)] = torch.tensor(sample.logprobs)
            reported[i, : len(sample.logprobs)] = True
    return engine, reported


def engine_correction(trainer: Tensor, engine: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """[a, m] weights min(pi_trainer / pi_engine, cap), for engines compute the same model a little differently.

    Both are of the distribution that was sampled from: under the grammar, at the sampling temperature.
    """
    return torch.where(mask, (trainer - engine).exp().clamp(max=cap), 0.0)

"""What learns, whatever the algorithm: a policy and its optimizer, and the passes over a batch of actions.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dragoman.core.progress import bar
from dragoman.rollout.samples import Sample
from dragoman.training.actions import AllowedTokens, Batch, Row, collate, micro_batches, rows
from dragoman.training.actor import Actor, Critic
from dragoman.training.settings import RlParams

E = TypeVar("E")
"""What an algorithm adds to a batch of actions before it learns from them."""


@dataclass(frozen=True)
class Survey:
    """What the models say about a batch of actions before anything is learnt from it. All are [a, m], on the CPU."""

    old: Tensor
    """Log-probabilities under the policy that drew the actions."""
    raw: Tensor
    """Those of the model itself, without grammar and temperature."""
    entropy: Tensor
    reference: Tensor
    """As `old`, under the warm-up; `old` itself where no reference is asked."""
    values: Tensor
    """The critic's; 0 without one."""
    engine: Tensor
    """As `raw`, as the engine reported them; `raw` where it did not."""
    reported: Tensor
    """bool: the engine did."""
    mask: Tensor
    """bool: there is such a token."""

    def figures(self) -> dict[str, float]:
        """What it says about the health of a run, by the names of the history's columns."""
        difference = (self.raw - self.engine)[self.mask & self.reported]
        ratios = difference.exp().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist() if len(difference) else [1.0] * 3
        return {
            "kl": float((self.old - self.reference)[self.mask].mean()),
            "entropy": float(self.entropy[self.mask].mean()),
            "engine_difference": float(difference.abs().mean()) if len(difference) else 0.0,
            **{f"engine_ratio_{q}": r for q, r in zip(("p05", "p50", "p95"), ratios, strict=True)},
        }


class PolicyLearner(ABC, Generic[E]):
    """A policy, its optimizer, and what an algorithm does with a batch of actions: appraise it, then learn from it.

    Algorithms differ in `appraise` and `step`. Those with other weights to train (a critic) give the optimizer another
    parameter group, those with a KL penalty ask for a reference.
    """

    def __init__(self, warm_up: Path, settings: RlParams, *, seed: int) -> None:
        torch.manual_seed(seed)  # of the first weights of adapters and heads
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.settings = settings
        self.actor = Actor(warm_up, settings.adapter, device, bf16=settings.bf16)
        self.reference: Actor | None = None
        group: dict[str, Any] = {
            "params": self.actor.trainable(),
            "lr": settings.policy_lr,
            "initial_lr": settings.policy_lr,
        }
        self.optimizer = torch.optim.AdamW([group], betas=(0.9, 0.95), weight_decay=0.0)
        self.allowed = AllowedTokens(warm_up)

    @abstractmethod
    def appraise(self, batch: Sequence[Sample]) -> tuple[E, dict[str, float]]:
        """What is to be known of a batch before the policy changes, and figures for the history."""

    @abstractmethod
    def step(self, batch: Sequence[Sample], indices: Sequence[int], experience: E) -> dict[str, float]:
        """One optimizer step on some actions of a batch, in micro-batches whose gradients add up."""

    def learn(self, batch: Sequence[Sample], experience: E, *, shuffle: random.Random) -> dict[str, float]:
        """Some epochs of steps over mini-batches. Returns the means of what was seen on the way."""
        s = self.settings
        seen: dict[str, list[float]] = defaultdict(list)
        groups = rows(batch, range(len(batch)))
        with bar("learn", s.epochs * len(batch)) as advance:
            for _ in range(s.epochs):
                shuffle.shuffle(groups)  # siblings stay together: they share their prompt
                for mini in _mini_batches(groups, s.batch_size):
                    indices = [i for row in mini for i in row.actions]
                    step = self.step(batch, indices, experience)
                    for name, value in step.items():
                        seen[name].append(value)
                    advance(" ".join(f"{name} {value:.3f}" for name, value in step.items()), steps=len(indices))
        return {name: sum(values) / len(values) for name, values in seen.items()}

    def batches(self, batch: Sequence[Sample], indices: Sequence[int]) -> list[Batch]:
        limit = self.settings.micro_batch_tokens
        grouped: list[list[Row]] = list(micro_batches(rows(batch, indices), limit))
        return [collate(group, batch, self.allowed, self.allowed.pad_id) for group in grouped]

    @torch.no_grad()
    def survey(self, batch: Sequence[Sample], *, reference: bool = False, critic: Critic | None = None) -> Survey:
        """One pass of the policy over a batch and, where they are asked, one of the reference and of the critic."""
        shape = (len(batch), max(len(sample.completion_ids) for sample in batch))
        old, raw, entropy, under_reference, values = (torch.zeros(shape) for _ in range(5))
        mask = torch.zeros(shape, dtype=torch.bool)
        with bar("appraise", len(batch)) as advance:
            for micro in self.batches(batch, range(len(batch))):
                policy = self.actor(micro, self.settings.exploration.temperature)
                width = micro.mask.shape[1]
                old[micro.actions, :width] = policy.logprobs.cpu()
                raw[micro.actions, :width] = policy.raw.cpu()
                entropy[micro.actions, :width] = policy.entropy.cpu()
                if critic is not None:
                    values[micro.actions, :width] = critic(micro, policy).cpu()
                mask[micro.actions, :width] = micro.mask
                if reference:
                    under_reference[micro.actions, :width] = self._under_reference(micro).cpu()
                advance(steps=len(micro.actions))
        engine, reported = engine_logprobs(batch, raw)
        return Survey(old, raw, entropy, under_reference if reference else old, values, engine, reported, mask)

    def open_reference(self) -> None:
        """Keep the warm-up as it is: a second model, unless the policy can put its adapter aside."""
        if not self.actor.has_reference:
            actor = self.actor
            self.reference = Actor(actor.folder, None, actor.device, bf16=actor.bf16).requires_grad_(False)

    def _under_reference(self, micro: Batch) -> Tensor:
        if self.reference is not None:
            return self.reference(micro, self.settings.exploration.temperature).logprobs
        with self.actor.reference():
            return self.actor(micro, self.settings.exploration.temperature).logprobs

    def apply_gradients(self) -> float:
        """Let the optimizer step. Returns the norm of the policy's gradient before it was clipped."""
        # apart: a critic's gradients are far larger at first, and would scale the policy's down with them
        groups = self.optimizer.param_groups
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], self.settings.max_grad_norm) for group in groups]
        if all(map(torch.isfinite, norms)):  # a bad batch must not destroy the weights; a guard sees it
            self.optimizer.step()
        return float(norms[0])

    def set_progress(self, progress: float) -> None:
        """Cosine decay of all learning rates, `progress` from 0 to 1."""
        factor = 0.5 * (1 + math.cos(math.pi * progress))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def state(self) -> dict[str, Any]:
        return {
            "actor": self.actor.state(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.actor.load_state(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])


def engine_logprobs(batch: Sequence[Sample], own: Tensor) -> tuple[Tensor, Tensor]:
    """The engine's log-probabilities as [a, m], with `own` where it reported none, and where it did report."""
    engine, reported = own.clone(), torch.zeros(own.shape, dtype=torch.bool)
    for i, sample in enumerate(batch):
        if len(sample.logprobs) == len(sample.completion_ids):
            engine[i, : len(sample.logprobs)] = torch.tensor(sample.logprobs)
            reported[i, : len(sample.logprobs)] = True
    return engine, reported


def engine_correction(trainer: Tensor, engine: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """[a, m] weights min(pi_trainer / pi_engine, cap), for engines compute the same model a little differently."""
    return torch.where(mask, (trainer - engine).exp().clamp(max=cap), 0.0)


def _mini_batches(groups: Sequence[Row], size: int) -> list[list[Row]]:
    """Rows in their order, cut where `size` actions are full."""
    batches: list[list[Row]] = [[]]
    for row in groups:
        if batches[-1] and sum(len(r.actions) for r in batches[-1]) + len(row.actions) > size:
            batches.append([])
        batches[-1].append(row)
    return batches

"""What learns, whatever the algorithm: a policy and its optimizer, and the passes over a batch of actions.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.core.progress import bar
from dragoman.engines.precision import resolved
from dragoman.rollout.samples import Sample
from dragoman.training.actor import Actor, Critic
from dragoman.training.algorithm import Algorithm, MicroBatch
from dragoman.training.batch import AllowedTokens, Batch, MarkedBatch, Row, lay_out, rows
from dragoman.training.parallel import Share
from dragoman.training.settings import RlParams
from dragoman.training.survey import Survey, engine_logprobs


class Learner:
    """A policy, with the critic and the reference that the algorithm needs, and one optimizer.

    Args:
        algorithm: its `prepare` and `loss` are called.
        warm_up: model folder to start from, which is also the reference.
        seed: of the first weights of adapters and heads.
        checkpoint: what to go on from, as `load` reads it.
    """

    def __init__(
        self, algorithm: Algorithm, warm_up: Path, settings: RlParams, *, seed: int, checkpoint: Path | None = None
    ) -> None:
        torch.manual_seed(seed)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.algorithm, self.settings = algorithm, settings
        bf16 = resolved(settings.dtype) == "bfloat16"
        self.actor = Actor(warm_up, settings.adapter, device, bf16=bf16)
        groups = [(self.actor.trainable(), settings.policy_lr)]
        self.critic: Critic | None = None
        if algorithm.needs_critic(settings):
            self.critic = Critic(self.actor, separate=settings.critic == "separate", adapter=settings.adapter)
            groups.append((self.critic.trainable(), settings.value_lr))
        self.needs_reference = algorithm.needs_reference(settings)
        self.reference: Actor | None = None
        if self.needs_reference and not self.actor.has_adapter:  # an adapter can be put aside instead
            self.reference = Actor(warm_up, None, device, bf16=bf16).requires_grad_(False)
        self.steps, self.progress = 0, 0.0
        self.optimizer = torch.optim.AdamW(
            [{"params": weights, "lr": rate, "initial_lr": rate} for weights, rate in groups],
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )
        self.allowed = AllowedTokens(warm_up)
        self.share = Share()
        if checkpoint is not None:
            self.load(checkpoint)

    def iterate(self, batch: Sequence[Sample], *, progress: float, shuffle: random.Random) -> dict[str, float]:
        """All that an iteration learns from a batch. Returns figures for the history."""
        self.set_progress(progress)
        experience, figures = self.prepare(batch)
        return figures | self.learn(batch, experience, shuffle=shuffle)

    def prepare(self, batch: Sequence[Sample]) -> tuple[Any, dict[str, float]]:
        """What is to be known of a batch before the policy changes, and figures for the history."""
        return self.algorithm.prepare(self, batch)

    def learn(self, batch: Sequence[Sample], experience: Any, *, shuffle: random.Random) -> dict[str, float]:
        """Some epochs of steps over mini-batches. Returns the means of what was seen on the way."""
        s = self.settings
        seen: dict[str, list[float]] = defaultdict(list)
        groups = rows(batch, range(len(batch)))
        tokens = self._free_tokens(batch)
        with bar("learn", s.epochs * len(batch)) as advance:
            for _ in range(s.epochs):
                shuffle.shuffle(groups)  # siblings stay together: they share their prompt
                steps = _mini_batches(groups, s.batch_size)
                for mini in steps:
                    if self.exhausted:
                        break
                    indices = [i for row in mini for i in row.actions]
                    step = self.step(batch, indices, experience, steps=len(steps), tokens=tokens)
                    for name, value in step.items():
                        seen[name].append(value)
                    advance(" ".join(f"{name} {value:.3f}" for name, value in step.items()), steps=len(indices))
        self.allowed.forget()
        return {name: sum(values) / len(values) for name, values in seen.items()}

    def step(
        self,
        batch: Sequence[Sample],
        indices: Sequence[int],
        experience: Any,
        *,
        steps: int = 1,
        tokens: int | None = None,
    ) -> dict[str, float]:
        """One optimizer step on some actions of a batch, in micro-batches whose gradients add up, over processes as well.

        Args:
            steps: into how many the batch is cut. Loss and figures are multiplied by it, so that each step estimates those of
                the whole batch, and their mean over an epoch is exact.
            tokens: free ones of the whole batch, where they are counted already.
        """
        device = self.actor.device
        tokens = self._free_tokens(batch) if tokens is None else tokens
        self.optimizer.zero_grad(set_to_none=True)
        figures: dict[str, float] = defaultdict(float)
        for micro in self.batches(batch, indices):
            policy = self.actor(micro, self.settings.exploration.temperature)
            values = None if self.critic is None else self.critic(micro, policy)
            part = _part(experience, micro, device)
            loss, own = self.algorithm.loss(
                MicroBatch(policy.logprobs, values, micro.free.to(device), tokens), part, self.settings
            )
            (steps * loss).backward()
            for name, value in own.items():
                figures[name] += steps * value
        self.share.add_up_gradients(self.trainable())
        return {**_summed(self.share.gather(dict(figures))), "grad_norm": self._apply_gradients()}

    def _free_tokens(self, batch: Sequence[Sample]) -> int:
        return max(1, sum(map(self.allowed.free, batch)))

    def batches(self, batch: Sequence[Sample], indices: Sequence[int]) -> Iterator[Batch | MarkedBatch]:
        """The micro-batches that are this process's own."""
        return lay_out(batch, indices, self.allowed, self.settings.micro_batch_tokens, self.share.part)

    @torch.no_grad()
    def survey(self, batch: Sequence[Sample]) -> Survey:
        """One pass of the policy over a batch and, where they are needed, one of the reference and of the critic."""
        shape = (len(batch), max(sample.length for sample in batch))
        old, entropy, under_reference, values, free = (torch.zeros(shape) for _ in range(5))
        with bar("prepare", len(batch)) as advance:
            for micro in self.batches(batch, range(len(batch))):
                policy = self.actor(micro, self.settings.exploration.temperature)
                place = (micro.actions, slice(micro.mask.shape[1]))
                old[place] = policy.logprobs.cpu()
                entropy[place] = policy.entropy.cpu()
                if self.critic is not None:
                    values[place] = self.critic(micro, policy).cpu()
                free[place] = micro.free.float()
                if self.needs_reference:
                    under_reference[place] = self._under_reference(micro).cpu()
                advance(steps=len(micro.actions))
        self.share.add_up([old, entropy, under_reference, values, free])
        engine, reported = engine_logprobs(batch, old)
        reference = under_reference if self.needs_reference else old
        return Survey(old, entropy, reference, values, engine, reported, free.bool())

    def _under_reference(self, micro: Batch | MarkedBatch) -> Tensor:
        with self.actor.without_adapter():
            return (self.reference or self.actor)(micro, self.settings.exploration.temperature).logprobs

    def _apply_gradients(self) -> float:
        """Let the optimizer step. Returns the norm of the policy's gradient before it was clipped."""
        # apart: a critic's gradients are far larger at first, and would scale the policy's down with them
        groups = self.optimizer.param_groups
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], self.settings.max_grad_norm) for group in groups]
        self._set_rates()
        self.steps += 1
        if all(map(torch.isfinite, norms)):  # a bad batch must not destroy the weights; a guard sees it
            self.optimizer.step()
        return float(norms[0])

    @property
    def exhausted(self) -> bool:
        """There were as many steps as there may be."""
        return self.settings.max_steps is not None and self.steps >= self.settings.max_steps

    def set_progress(self, progress: float) -> None:
        """Say how much of the iterations is over, from 0 to 1: learning rates decay by it."""
        self.progress = progress

    def _set_rates(self) -> None:
        """Those of the next step; see `rate`."""
        s = self.settings
        progress = self.progress
        if s.max_steps is not None:
            progress = max(0, self.steps - s.warmup_steps) / max(1, s.max_steps - s.warmup_steps)
        factor = rate(s.schedule, progress, least=s.final_lr) * min(1.0, (self.steps + 1) / max(1, s.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def trainable(self) -> list[nn.Parameter]:
        """The weights that are trained: the policy's, then the critic's."""
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]

    def load(self, checkpoint: Path) -> dict[str, Any]:
        """Go on from a file that has a learner's `state` under that name. Returns all that it has."""
        kept: dict[str, Any] = torch.load(checkpoint, weights_only=True)
        self.load_state(kept["learner"])
        return kept

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on as if it had not stopped."""
        return {
            "actor": self.actor.state(),
            "critic": None if self.critic is None else self.critic.state(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.actor.load_state(state["actor"])
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.steps = state["steps"]


def rate(schedule: str, progress: float, *, least: float = 0.0) -> float:
    """The share of its first value that a learning rate has when so much is over, from 0 to 1. At the end it is `least`."""
    decayed = 1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return least + (1 - least) * decayed


def _part(experience: Any, micro: Batch | MarkedBatch, device: torch.device) -> Any:
    """The same tuple of tensors, for the actions of a micro-batch alone."""
    width = micro.mask.shape[1]
    parts = [(x[micro.actions, :width] if x.dim() == 2 else x[micro.actions]).to(device) for x in experience]
    return experience._make(parts) if hasattr(experience, "_make") else tuple(parts)


def _summed(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """By name. A process without a micro-batch has nothing to add."""
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return total


def _mini_batches(groups: Sequence[Row], size: int) -> list[list[Row]]:
    """Rows in their order, cut where `size` actions are full."""
    batches: list[list[Row]] = [[]]
    for row in groups:
        if batches[-1] and sum(len(r.actions) for r in batches[-1]) + len(row.actions) > size:
            batches.append([])
        batches[-1].append(row)
    return batches

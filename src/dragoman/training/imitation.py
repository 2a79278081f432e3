"""The warm-up at marks: imitate an oracle, first in the states it comes to itself, then in those of the policy.

A policy that only ever saw an oracle's states does not know what to do after its own mistakes. So after each round it
decides by itself, the oracle says what would have been right in the states it came to, and it learns from those (DAgger:
Ross et al. 2011). This is not in the papers. No answer of the LLM is needed.

1. Learn from the seeds: the oracle's states.
2. Answer the dev questions greedily.
3. Decide on training questions greedily, with the oracle's labels.
4. Learn from these states, and from a share of the seeds. Go on at 2, `sft.rounds` times.
5. Keep the round that answers the dev questions best.
"""

from __future__ import annotations

import logging
import math
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.memory import give_back
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.engines.precision import resolved
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import check_outage
from dragoman.rollout.samples import Sample, read_samples, write_samples
from dragoman.training.actor import Actor
from dragoman.training.batch import AllowedTokens, lay_out
from dragoman.training.export import export, truncated
from dragoman.training.learner import rate
from dragoman.training.parallel import Share, Together
from dragoman.training.rollouts import Rollouts
from dragoman.training.run import TrainingRun
from dragoman.training.seeds import labelled
from dragoman.training.selection import of_roles
from dragoman.training.settings import SftParams
from dragoman.training.warm_up import begin, dev_row, dev_worths

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_EVERY = 100
"""Optimizer steps."""
STATES = "states"
"""The folder of what each round but the first learns from, in its order."""
VISIT = GREEDY.model_copy(update={"label": True, "answers": False})


async def train(
    run: TrainingRun, batch: Sequence[Sample], questions: Sequence[Question], settings: SftParams
) -> dict[str, Any]:
    """Imitate the samples, then the oracle on `questions`; publish the best round's policy.

    A run that was cut short goes on after its last checkpoint.

    Args:
        batch: what is imitated at first.
        questions: whose states the policy visits in further rounds; those without gold passages are left out.

    Returns:
        What `metrics.json` of its folder holds.

    Raises:
        UserError: nothing to learn from.
        Fault: too many of the visited or of the dev questions met one. A later try asks them again.
    """
    system, runtime, seed, out = run.system, run.runtime, run.seed, run.out
    visited = _pick([q for q in questions if q.supporting_ids], settings.visits, seed)
    warm_up = await begin(
        __name__,
        run,
        batch,
        settings,
        visited=visited,
        exclude=frozenset({"processes"}),  # a run goes on with more of them, or fewer
    )
    if warm_up.finished:
        _clean(out)
        return warm_up.finished
    base = truncated(warm_up.policy.base, settings.layers, out / "base")
    rollouts = Rollouts(system, runtime, run.reward, seed, settings.concurrency, settings.shaping)
    make = partial(Student, base, settings, seed, out / CHECKPOINT)
    student = make()
    states = seeds = warm_up.samples
    worths: list[list[float | None]] = []
    with Together(student, settings.processes, make) as students:
        for number in range(settings.rounds + 1 if visited else 1):
            folder = warm_up.candidate(number)
            if number:
                kept = out / STATES / f"{number:02d}.parquet"
                if not kept.is_file():
                    before = warm_up.policy.whole(warm_up.candidate(number - 1))
                    seen = out / "visited" / f"{number:02d}"
                    episodes = await rollouts.run(before, visited, out=seen, exploration=VISIT)
                    check_outage(episodes)  # a later try goes on here
                    labels = of_roles(labelled(episodes, student.allowed.vocabulary), settings.roles)
                    new = [s for s in labels if s.tokens <= settings.max_tokens]
                    write_samples(kept, [*new, *_pick(seeds, round(settings.replay * len(seeds)), seed + number)])
                    await runtime.release(system, before)
                    give_back()
                states = read_samples(kept)  # a later try would ask faulty visits again, and learn in another order
            students.call("learn", states, number, lr=settings.lr * (settings.next_lr if number else 1.0))
            if not folder.is_dir():
                student.save(base, folder)
            policy = warm_up.policy.whole(folder)
            answered = await rollouts.run(policy, run.dev, out=out / "dev" / f"{number:02d}")
            row = dev_row(answered, rollouts)
            await runtime.release(system, policy)
            give_back()
            student.history.append({"round": number, "states": len(states), **row})
            worths.append(dev_worths(answered, rollouts))
            log.info("sft round %d: %d states, dev %s %.3f", number, len(states), run.reward, row["dev_reward"])
    metrics = warm_up.finish("round", student.history, worths, student.losses, rounds=student.history)
    _clean(out)
    return metrics


def _clean(out: Path) -> None:
    """Remove what only a run that goes on would need."""
    for name in ("base", "candidates", STATES):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / CHECKPOINT).unlink(missing_ok=True)


def imitation_loss(logprobs: Tensor, lengths: Tensor, state: Tensor) -> Tensor:
    """-log of the probability that any right action is taken, by choice; the mean over states.

    L = mean over states s of -1/|s| log sum over right a of exp(sum over m of log pi(a_m | s)).

    A choice has length 1, so this is cross-entropy with the set of right options. A selection has one right action and a
    length of its options, so this is the mean binary cross-entropy of its options. What is written has a length of its free tokens.

    Args:
        logprobs: [a, m] of right actions; 0 where there is no choice.
        lengths: [a] choices that make up an action, without those that a grammar made.
        state: [a] which state each was right in, from 0.

    Returns:
        A scalar.
    """
    total = logprobs.sum(1)
    count = int(state.max()) + 1
    losses = [-total[state == s].logsumexp(0) / lengths[state == s][0] for s in range(count)]
    return torch.stack(losses).mean()


@dataclass
class Student:
    """A policy that imitates, and what it takes to go on after a kill.

    Args:
        base: model folder to start from.
        checkpoint: where to keep what a killed run has learnt.
    """

    base: Path
    settings: SftParams
    seed: int
    checkpoint: Path
    losses: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        bf16 = resolved(self.settings.dtype) == "bfloat16"
        self.actor = Actor(self.base, self.settings.adapter, device, bf16=bf16)
        self.allowed = AllowedTokens(self.base)
        self.share = Share()
        self.done = (0, 0)  # round, and steps of it
        self._optimizer_state: dict[str, Any] | None = None
        if self.checkpoint.is_file():
            state = torch.load(self.checkpoint, weights_only=True)
            self.actor.load_state(state["actor"])
            self.done, self.losses, self._optimizer_state = tuple(state["done"]), state["losses"], state["optimizer"]
            log.info("sft: going on in round %d after step %d", *self.done)

    def learn(self, states: Sequence[Sample], number: int, *, lr: float) -> None:
        """Some epochs over the states of a round. What a killed run has done of it is not done again."""
        if number < self.done[0]:
            return
        s = self.settings
        optimizer = torch.optim.AdamW(self.actor.trainable(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        first = self.done[1] if number == self.done[0] else 0
        if first and self._optimizer_state is not None:
            optimizer.load_state_dict(self._optimizer_state)
        steps = [batch for epoch in range(s.epochs) for batch in self._batches(states, f"{number}/{epoch}")]
        warm = max(1, round(s.warmup_ratio * len(steps)))
        with bar(f"imitate, round {number}", len(steps)) as advance:
            advance(steps=first)
            for place, batch in enumerate(steps[first:], start=first):
                share = min(1.0, (place + 1) / warm) * rate("cosine", place / len(steps), least=s.final_lr)
                for group in optimizer.param_groups:
                    group["lr"] = lr * share
                loss = self._step(batch, optimizer)
                self.losses.append({"step": len(self.losses), "round": number, "loss": round(loss, 5)})
                self.done = (number, place + 1)
                if self.done[1] % CHECKPOINT_EVERY == 0:
                    self._save(optimizer)
                    give_back()
                    recent = sum(row["loss"] for row in self.losses[-CHECKPOINT_EVERY:]) / CHECKPOINT_EVERY
                    log.info("sft round %d: step %d of %d, loss %.3f", number, self.done[1], len(steps), recent)
                advance(f"loss {loss:.3f}")
        self.done = (number + 1, 0)
        self._save(optimizer)

    def trainable(self) -> list[nn.Parameter]:
        return self.actor.trainable()

    def save(self, base: Path, folder: Path) -> None:
        """Write the policy as a model folder."""
        adapter = folder.with_name(f"{folder.name}-adapter")
        self.actor.save(adapter)
        export(base, adapter, folder)
        shutil.rmtree(adapter)

    def _step(self, batch: Sequence[Sample], optimizer: torch.optim.Optimizer) -> float:
        """One optimizer step on some states."""
        right = [(state, action) for state, sample in enumerate(batch) for action in _right_actions(sample)]
        actions = [action for _, action in right]
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        size, part = self.settings.micro_batch_tokens, self.share.part
        for micro in lay_out(actions, range(len(actions)), self.allowed, size, part):
            places = micro.actions.tolist()
            numbers = [right[i][0] for i in places]
            order = {state: i for i, state in enumerate(dict.fromkeys(numbers))}
            policy = self.actor(micro)
            lengths = micro.free.sum(1).clamp(min=1).to(policy.logprobs.device)  # a forced token has probability 1
            state = torch.tensor([order[n] for n in numbers], device=policy.logprobs.device)
            share = imitation_loss(policy.logprobs, lengths, state) * len(order) / len(batch)
            share.backward()
            total += float(share.detach())
        self.share.add_up_gradients(self.trainable())
        loss = float(sum(self.share.gather(total)))
        if not math.isfinite(loss):  # before the weights take it in
            raise UserError(
                f"sft: the loss is {loss} in step {self.done[1] + 1} of round {self.done[0]}, on {batch[0].node} and the "
                "states beside it; lower sft.lr, or leave these samples out. Nothing was learnt in this step"
            )
        torch.nn.utils.clip_grad_norm_(self.trainable(), 1.0)
        optimizer.step()
        return loss

    def _batches(self, states: Sequence[Sample], epoch: str) -> Iterator[list[Sample]]:
        """States in random order; those of a step are of like length, so that little is padding."""
        rng = random.Random(f"{self.seed}/{epoch}")
        size, pool = self.settings.batch_size, 16 * self.settings.batch_size
        order = rng.sample(list(states), len(states))
        batches = []
        for start in range(0, len(order), pool):
            alike = sorted(order[start : start + pool], key=lambda sample: sample.tokens)
            batches += [alike[i : i + size] for i in range(0, len(alike), size)]
        rng.shuffle(batches)
        yield from batches

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        if self.share.rank:  # process 0 writes for all
            return
        state = {
            "done": list(self.done),
            "losses": self.losses,
            "actor": self.actor.state(),
            "optimizer": optimizer.state_dict(),
        }
        with files.replacing(self.checkpoint) as temporary:
            torch.save(state, temporary)


def _right_actions(sample: Sample) -> list[Sample]:
    """What is imitated in a state: an oracle's labels, else the action that was taken."""
    marks = sample.marks
    if marks is None:
        return [sample]
    # A draw is of the logits with their bias: learnt without it, the bias would count twice at use. It had no part in a
    # label, nor in a forced choice: every kind was tried, and the options of one kind share their bias.
    bias = () if marks.right or sample.forced else marks.bias
    return [replace(sample, marks=replace(marks, taken=places, bias=bias)) for places in marks.right or (marks.taken,)]


def _pick(items: Sequence[Any], count: int, seed: int) -> list[Any]:
    return list(items) if count >= len(items) else random.Random(seed).sample(list(items), count)

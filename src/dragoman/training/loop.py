"""The run of an algorithm: iterate, roll out and learn; keep the policy that is best on `dev`; go on after a kill."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.registry.policy import METRICS, lineage, publish, resume
from dragoman.registry.trained_with import trained_with
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample, samples, write_samples
from dragoman.rollout.view import write_tree
from dragoman.runtime import Runtime
from dragoman.training.dev import dev_rollout, roll_out_policy, run_identity
from dragoman.training.export import export
from dragoman.training.learner import PolicyLearner
from dragoman.training.settings import RlParams

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Collected:
    """What an iteration has to learn from."""

    episodes: Sequence[Episode]
    batch: Sequence[Sample]
    """May be empty; then nothing is learnt in this iteration."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """For the history, where they win over the loop's own of the same name."""


class Loop(ABC):
    """Iterate: roll out with the current policy, choose what to learn from, learn. Keep the policy that is best on `dev`.

    Algorithms differ in `collect` and in their learner. Every iteration ends in a checkpoint. A run that was cut short goes
    on from there when it is made again with equal arguments, and comes to the same numbers; with other arguments it starts
    anew.

    Args:
        system: name of the system whose roles are trained.
        questions: to learn from; shuffled anew in each pass.
        dev: never learnt from; greedy answers to them choose the policy.
        warm_up: model folder of the policy to start from, which is also the reference.
        reward: name of the score that is learnt from, such as `cover_em`.
        out: the stage's folder.
        data: hashes of what is learnt from, for the manifest.
        ranks: a curriculum: questions by id, those of lower rank first in each pass.

    Raises:
        UserError: nothing to learn from, or settings that the algorithm cannot work with.
    """

    algorithm: ClassVar[str]
    learner_type: ClassVar[type[PolicyLearner[Any]]]

    def __init__(
        self,
        system: str,
        questions: Sequence[Question],
        dev: Sequence[Question],
        runtime: Runtime,
        settings: RlParams,
        *,
        warm_up: Path,
        reward: str,
        seed: int,
        out: Path,
        data: dict[str, str],
        ranks: Mapping[str, int] = {},
    ) -> None:
        if not questions or not dev:
            raise UserError("rl needs questions to learn from and dev questions to choose by; one of the two is empty")
        self.system, self.questions, self.dev, self.runtime = system, questions, dev, runtime
        self.settings, self.warm_up, self.reward, self.seed, self.out = settings, warm_up, reward, seed, out
        self.ranks = ranks
        parameters = {
            "algorithm": self.algorithm,
            "reward": reward,
            "seed": seed,
            **settings.model_dump(mode="json"),
        }
        self.manifest = lineage("rl", system, warm_up, data, parameters)
        self.learner = self.learner_type(warm_up, settings, seed=seed)
        self.iteration = 0
        self.history: list[dict[str, Any]] = []
        self.dev_history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    @abstractmethod
    async def collect(self, questions: Sequence[Question]) -> Collected:
        """Roll out an iteration's questions, and choose what is learnt from."""

    async def train(self) -> dict[str, Any]:
        """Train, publish the best policy in `out`, and return what `out/metrics.json` holds."""
        start = f"{self.system}@{self.warm_up}"
        system, backends = self.runtime.open(start)
        identity = run_identity(
            type(self).__module__,
            self.system,
            system,
            backends,
            self.manifest,
            exploration=self.settings.exploration,
            reward=self.reward,
            seed=self.seed,
            learnt_from=[question.id for question in self.questions],
            dev=self.dev,
        )
        if finished := resume(self.out, identity):
            return finished
        self.manifest |= {"trained_with": trained_with(system)}
        self._load_checkpoint()
        if self.iteration:
            await self.runtime.release(start)
        stopped = self.settings.guards.broken_by(self.history[-1]) if self.history else ""
        with bar(f"rl {self.system}", self.settings.iterations) as advance:
            advance(steps=self.iteration)
            while self.iteration < self.settings.iterations and not stopped:
                if self.iteration % self.settings.dev_every == 0:
                    await self._evaluate()
                row = await self._iterate()
                self.history.append(row)
                self.iteration += 1
                self._checkpoint()
                advance(f"reward {row['reward']:.2f}" + (f" KL {row['kl']:.3f}" if "kl" in row else ""))
                stopped = self.settings.guards.broken_by(row)
        if stopped:
            log.warning("rl: stopped after %d iterations: %s; the best policy is kept", self.iteration, stopped)
        else:
            await self._evaluate()
        return self._finish(stopped)

    async def roll_out(
        self, questions: Sequence[Question], *, exploration: Exploration, seed: int, part: str = ""
    ) -> list[Episode]:
        """Episodes of the current policy, in a folder of this iteration, or in the part of it that is named."""
        return await roll_out_policy(
            self.system,
            self._policy(),
            questions,
            self.runtime,
            exploration=exploration,
            reward=self.reward,
            seed=seed,
            concurrency=self.settings.concurrency,
            out=self.out / "rollouts" / f"{self.iteration:04d}" / part,
        )

    async def grow_trees(self, questions: Sequence[Question]) -> list[Episode]:
        return await self.roll_out(questions, exploration=self.settings.exploration, seed=self.seed + self.iteration)

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        """The actions of the roles that are trained."""
        s = self.settings
        found = [sample for episode in episodes for sample in samples(episode, self.reward, price=s.price)]
        return [sample for sample in found if sample.role in s.roles] if s.roles else found

    def fitting(self, found: Sequence[Sample]) -> list[Sample]:
        """Those that are not too long to be learnt from."""
        return [x for x in found if len(x.prompt_ids) + len(x.completion_ids) <= self.settings.max_tokens]

    async def _iterate(self) -> dict[str, Any]:
        """One iteration: roll out, choose, appraise, learn."""
        s, started = self.settings, time.monotonic()
        chosen = questions_of(self.iteration, self.questions, s.questions, self.seed, self.ranks)
        collected = await self.collect(chosen)
        await self.runtime.release(f"{self.system}@{self._policy()}")  # the next iteration has other weights
        rolled = time.monotonic()
        episodes, batch = collected.episodes, collected.batch
        stats: dict[str, float] = {}
        self.learner.set_progress(self.iteration / s.iterations)
        if batch:
            experience, stats = self.learner.appraise(batch)
            shuffle = random.Random(f"{self.seed}/{self.iteration}")
            stats |= self.learner.learn(batch, experience, shuffle=shuffle)
            self.learner.allowed.forget()
            write_samples(self.out / "samples.parquet", batch)
        else:
            log.warning("rl iteration %d: nothing to learn from: %s", self.iteration, dict(collected.figures))
        write_tree(episodes[0], self.reward, self.out / "trees" / f"{self.iteration:04d}.html")
        leaves = [t for e in episodes for t in e.trajectories]
        nodes = [n for e in episodes for n in e.nodes]
        return {
            "iteration": self.iteration,
            "reward": mean_reward(episodes, self.reward),
            "valid_actions": sum(n.stop is None for n in nodes) / max(1, len(nodes)),
            "unscored": sum(t.rewards.get(self.reward) is None for t in leaves),
            "trees": len(episodes),
            "trajectories": len(leaves),
            "actions": len(batch),
            **collected.figures,
            **{f"actions_{role}": n for role, n in sorted(Counter(x.role for x in batch).items())},
            **stats,
            "rollout_seconds": round(rolled - started, 1),
            "learn_seconds": round(time.monotonic() - rolled, 1),
        }

    async def _evaluate(self) -> None:
        """Greedy answers to the dev questions; the policy is kept when it is the best so far."""
        row = next((r for r in self.dev_history if r["iteration"] == self.iteration), None)
        if row is None:
            summary = await dev_rollout(
                self.system,
                self._policy(),
                self.dev,
                self.runtime,
                reward=self.reward,
                seed=self.seed,
                concurrency=self.settings.concurrency,
                out=self.out / "dev" / f"{self.iteration:04d}",
            )
            row = {"iteration": self.iteration, **summary}
            self.dev_history.append(row)
        if self.best is None or self._worth(row) > self._worth(self.best):
            self.best = row
            shutil.rmtree(self.out / "best", ignore_errors=True)
            shutil.copytree(self._policy(), self.out / "best")
        log.info("rl iteration %d: dev %s %.3f", self.iteration, self.reward, row["dev_reward"])

    def _worth(self, row: dict[str, Any]) -> float:
        """By what a policy is chosen: its dev reward, less the price of its steps."""
        worth: float = row["dev_reward"] - self.settings.price * row["dev_steps"]
        return worth

    def _policy(self) -> Path:
        """A folder with the current weights, for an engine to read."""
        if self.iteration == 0:
            return self.warm_up
        folder = self.out / "current" / f"{self.iteration:04d}"
        if not folder.is_dir():
            shutil.rmtree(folder.parent, ignore_errors=True)
            with tempfile.TemporaryDirectory() as trained:
                self.learner.actor.save(Path(trained))
                export(self.warm_up, Path(trained), folder)
        return folder

    def _checkpoint(self) -> None:
        state = {
            "iteration": self.iteration,
            "history": self.history,
            "dev_history": self.dev_history,
            "best": self.best,
            "learner": self.learner.state(),
        }
        with files.replacing(self.out / CHECKPOINT) as temporary:
            torch.save(state, temporary)
        self._write_history()

    def _load_checkpoint(self) -> None:
        path = self.out / CHECKPOINT
        if path.is_file():
            state = torch.load(path, weights_only=True)
            self.learner.load_state(state["learner"])
            self.iteration, self.best = state["iteration"], state["best"]
            self.history, self.dev_history = state["history"], state["dev_history"]
            log.info("rl: going on after iteration %d of %d", self.iteration, self.settings.iterations)

    def _write_history(self) -> None:
        files.write_csv(self.out / "history.csv", self.history)
        files.write_csv(self.out / "dev.csv", self.dev_history)

    def _finish(self, stopped: str) -> dict[str, Any]:
        """Publish the best policy; what only a resumed run would need goes."""
        assert self.best is not None  # the first iteration starts with an evaluation
        metrics = {
            "algorithm": self.algorithm,
            "iterations": self.iteration,
            "stopped": stopped,
            "best_iteration": self.best["iteration"],
            "dev_reward": self.best["dev_reward"],
            "dev_questions": len(self.dev),
            "first": self.dev_history[0],
            "last": self.dev_history[-1],
        }
        policy = publish(self.out / "best", self.out, self.manifest | {"metrics": metrics})
        metrics["policy"] = policy.version
        files.write_json(self.out / METRICS, metrics)
        self._write_history()
        shutil.rmtree(self.out / "current", ignore_errors=True)
        (self.out / CHECKPOINT).unlink(missing_ok=True)
        return metrics


def mean_reward(episodes: Sequence[Episode], reward: str) -> float:
    """Over all trajectories that have one; 0 where none has."""
    rewarded = [r for e in episodes for t in e.trajectories if (r := t.rewards.get(reward)) is not None]
    return sum(rewarded) / max(1, len(rewarded))


def with_contrast(found: Sequence[Sample]) -> list[Sample]:
    """The actions of those states in which siblings earned different credit: elsewhere any choice did as well."""
    credits: dict[str, set[float]] = defaultdict(set)
    for sample in found:
        credits[sample.group].add(sample.credit)
    return [sample for sample in found if len(credits[sample.group]) > 1]


def questions_of(
    iteration: int, questions: Sequence[Question], count: int, seed: int, ranks: Mapping[str, int] = {}
) -> list[Question]:
    """The `count` questions of an iteration: none comes again before a pass is over, and each pass has an order of its own.

    Within it, questions of lower rank (by id) come first. What does not fill a last iteration of a pass is left out of it.
    """
    count = min(count, len(questions))
    turn, place = divmod(iteration, len(questions) // count)
    order = list(questions)
    random.Random(f"{seed}/{turn}").shuffle(order)
    order.sort(key=lambda question: ranks.get(question.id, 0))
    return order[place * count : (place + 1) * count]

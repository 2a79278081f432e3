"""The run of an algorithm: roll out, learn, checkpoint; keep the policy that is best on `dev`; go on after a kill."""

from __future__ import annotations

import copy
import logging
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.memory import give_back
from dragoman.core.progress import bar
from dragoman.core.types import Question
from dragoman.registry.policy import METRICS, PolicySet, lineage, resume
from dragoman.registry.trained_with import trained_with
from dragoman.rewards import Reward
from dragoman.rollout.calls import seed_of
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.figures import llm_calls
from dragoman.rollout.record import Episode, check_outage
from dragoman.rollout.samples import Sample, samples, write_samples
from dragoman.rollout.scheduler import check_questions
from dragoman.rollout.view import write_tree
from dragoman.training.ahead import Ahead, meanwhile
from dragoman.training.algorithm import Algorithm, Collected
from dragoman.training.identity import run_identity
from dragoman.training.learner import Learner
from dragoman.training.parallel import Together
from dragoman.training.policies import TrainedPolicy
from dragoman.training.rollouts import Rollouts, summary
from dragoman.training.run import TrainingRun
from dragoman.training.selection import better, mean_reward, of_roles, questions_of, worth
from dragoman.training.settings import RlParams

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"


class Loop:
    """Iterate: roll out with the current policy, choose what to learn from, learn. Keep the policy that is best on `dev`.

    Every iteration ends in a checkpoint. A run that was cut short goes on from there when it is made again with equal
    arguments, and comes to the same numbers; with other arguments it starts anew.

    Args:
        algorithm: what to learn from, and how.
        run: starts from the warm-up. The weights behind `settings.roles` are trained, and stay near its own. What is learnt
            from, and what chooses on its dev questions, is its score with `settings.shaping`.
        questions: to learn from; shuffled anew in each pass.
        ranks: a curriculum: questions by id, those of lower rank first in each pass.

    Raises:
        UserError: nothing to learn from, or settings that the algorithm cannot work with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        run: TrainingRun,
        questions: Sequence[Question],
        settings: RlParams,
        ranks: Mapping[str, int] = {},
    ) -> None:
        if not questions or not run.dev:
            raise UserError("rl needs questions to learn from and dev questions to choose by; one of the two is empty")
        learnt = Reward.of(run.reward, shaping=settings.shaping if algorithm.shaped else None)
        if not settings.exploration.answers and learnt.needs_answers:
            raise UserError(
                f"rl.exploration.answers: without answers {algorithm.name} has nothing to learn from, by the reward {learnt.shaped_name}; "
                "set rl.shaping to what reads none, such as `2 * gold_recall + gold_precision`, or rl.exploration.answers to true"
            )
        algorithm.check(settings)
        self.algorithm, self.run, self.questions, self.settings, self.ranks = algorithm, run, questions, settings, ranks
        self.system, self.runtime, self.out = run.system, run.runtime, run.out
        self.policy = TrainedPolicy(
            run.start, settings.roles, run.out, own=settings.own_weights, staleness=settings.max_staleness
        )
        self.drawn_by: Path | None = None
        """The weights that answer in rollouts; None for the trained ones, as they are now."""
        learnt_by = settings.model_dump(mode="json", exclude={"processes", "max_minutes"})  # with others a run goes on
        parameters = {"algorithm": algorithm.name, "reward": run.reward, "seed": run.seed, **learnt_by}
        self.manifest = lineage("rl", run.system, run.start, run.data, parameters)
        self.rollouts = Rollouts(run.system, run.runtime, run.reward, run.seed, settings.concurrency, settings.shaping)
        self.shaped = self.rollouts.shaped
        self.shown = run.reward if settings.exploration.answers else self.shaped
        """The reward in the history and in drawings of trees."""
        self.learner = Learner(algorithm, self.policy.base, settings, seed=run.seed)
        self.iteration = 0
        self.history: list[dict[str, Any]] = []
        self.dev_history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.best_worths: list[float | None] = []
        """What the best policy earned on each dev question; None where that could not be scored."""

    async def train(self) -> dict[str, Any]:
        """Train, publish the best policy in `out`, and return what `out/metrics.json` holds."""
        began = time.monotonic()
        system, backends = self.runtime.open(self.system, self.run.start)
        check_questions([*self.questions, *self.run.dev], system, backends)
        trained = self.settings.roles or tuple(role.name for role in system.roles)
        if any(role.name in trained and not role.options for role in system.roles):
            self.learner.actor.check_written()
        identity = run_identity(
            [__name__, self.algorithm.collect.__module__],
            self.run,
            system,
            backends,
            self.manifest,
            exploration=self.settings.exploration,
            learnt_from=[question.id for question in self.questions],
            shaping=self.settings.shaping,
        )
        if finished := resume(self.out, identity):
            self._clean()
            return finished
        self.manifest |= {"trained_with": trained_with(system)}
        self._load_checkpoint()
        if self.iteration:
            await self.runtime.release(self.system, self.run.start)
        stopped = self._reason_to_stop()
        if self.iteration:  # what goes on may end at once; what begins has one iteration to show
            stopped = stopped or self._over_time(time.monotonic() - began)
        async with Ahead(self._collect) as ahead:
            with self._together() as self.learners, bar(f"rl {self.system}", self.settings.iterations) as advance:
                advance(steps=self.iteration)
                while self.iteration < self.settings.iterations and not (stopped or self.learner.exhausted):
                    if self.iteration % self.settings.dev_every == 0:
                        await self._evaluate()
                    row = await self._iterate(ahead)
                    self.history.append(row)
                    self.iteration += 1
                    self._checkpoint()
                    advance(f"reward {row['reward']:.2f}" + (f" KL {row['kl']:.3f}" if "kl" in row else ""))
                    stopped = self._reason_to_stop() or self._over_time(time.monotonic() - began)
        if stopped:
            log.warning("rl: stopped after %d iterations: %s; the best policy is kept", self.iteration, stopped)
        if not self._guard():
            await self._evaluate()
        return self._finish(stopped)

    def _reason_to_stop(self) -> str:
        """What the history says against another iteration; empty where it says nothing."""
        return self._guard() or (self.algorithm.hopeless(self.history, self.settings) if self.history else "")

    def _over_time(self, seconds: float) -> str:
        """That the time is up, while iterations are left; empty where it is not."""
        most = self.settings.max_minutes
        over = most is not None and seconds > 60 * most and self.iteration < self.settings.iterations
        return f"rl.max_minutes is {most:g}" if over else ""

    def _guard(self) -> str:
        """What the last iteration says against the policy that it left; empty where it says nothing."""
        return self.settings.guards.broken_by(self.history[-1]) if self.history else ""

    async def roll_out(
        self,
        questions: Sequence[Question],
        *,
        exploration: Exploration | None = None,
        seed: int | None = None,
        out: Path | None = None,
        by: PolicySet | None = None,
    ) -> list[Episode]:
        """Episodes of the current policy, or of another one: by default trees, with a seed for each iteration.

        They are kept in a folder of this iteration, or in `out`.
        """
        return await self.rollouts.run(
            by or self.policy.whole(self.drawn_by or self._weights()),
            questions,
            out=out or self.rollout_folder(self.iteration),
            exploration=exploration or self.settings.exploration,
            seed=seed_of(self.run.seed, self.iteration) if seed is None else seed,
        )

    async def draw(self, questions: Sequence[Question], number: int, *, by: PolicySet | None = None) -> list[Episode]:
        """A single trajectory of each question, as draw `number` of an iteration, from 0."""
        return await self.roll_out(
            questions,
            exploration=self.settings.single().exploration,
            seed=seed_of(self.run.seed, self.iteration, number),
            out=self.rollout_folder(self.iteration, number),
            by=by,
        )

    def rollout_folder(self, iteration: int, draw: int | None = None) -> Path:
        """Where an iteration's episodes are kept, or those of one of its draws."""
        folder = self.out / "rollouts" / f"{iteration:04d}"
        return folder if draw is None else folder / f"{draw:02d}"

    def samples(self, episodes: Sequence[Episode]) -> list[Sample]:
        """The actions of the roles that are trained."""
        s = self.settings
        found = [sample for episode in episodes for sample in samples(episode, self.shaped, price=s.price)]
        return of_roles(found, s.roles)

    def fitting(self, found: Sequence[Sample]) -> list[Sample]:
        """Those that are not too long to be learnt from."""
        return [x for x in found if x.tokens <= self.settings.max_tokens]

    async def _collect(self, number: int) -> Collected:
        """What an iteration learns from. Nothing of it depends on when it is drawn, so a resumed run draws the same."""
        s, first = self.settings, max(0, number - self.settings.max_staleness)
        then = copy.copy(self)  # this run may be at another iteration by now
        then.iteration, then.history, then.drawn_by = number, self.history[:first], self.policy.folder(first)
        return await self.algorithm.collect(
            then, questions_of(number, self.questions, s.questions, self.run.seed, self.ranks)
        )

    async def _iterate(self, ahead: Ahead) -> dict[str, Any]:
        """One iteration, as a row of the history."""
        s, started = self.settings, time.monotonic()
        self._weights()  # they are there before anything is drawn by them
        collected = await ahead.take(self.iteration)
        check_outage(collected.episodes)  # a later try goes on here
        if self.iteration >= s.max_staleness:  # the next iterations are drawn by other weights
            drew = self.policy.folder(self.iteration - s.max_staleness)
            if drew not in self.policy.carried.values():  # a draw may be under way that asks them for another role
                await self.runtime.release(self.system, self.policy.alone(drew))
        ahead.begin(range(self.iteration + 1, min(self.iteration + s.max_staleness + 1, s.iterations)))
        give_back()
        rolled = time.monotonic()
        episodes, batch = collected.episodes, collected.batch
        stats: dict[str, float] = {}
        if batch:
            stats = await meanwhile(self._learn, batch)
            give_back()
            write_samples(self.out / "samples.parquet", batch)
        else:
            log.warning("rl iteration %d: nothing to learn from: %s", self.iteration, dict(collected.figures))
        write_tree(episodes[0], self.shown, self.out / "trees" / f"{self.iteration:04d}.html")
        leaves = [t for e in episodes for t in e.trajectories]
        nodes = [n for e in episodes for n in e.nodes]
        return {
            "iteration": self.iteration,
            "reward": mean_reward(episodes, self.shown),
            "valid_actions": sum(n.stop is None for n in nodes) / max(1, len(nodes)),
            "unscored": sum(t.rewards.get(self.shown) is None for t in leaves),
            "trees": len(episodes),
            "trajectories": len(leaves),
            **llm_calls(episodes),
            "actions": len(batch),
            **collected.figures,
            **{f"actions_{role}": n for role, n in sorted(Counter(x.role for x in batch).items())},
            **stats,
            "rollout_seconds": round(rolled - started, 1),
            "learn_seconds": round(time.monotonic() - rolled, 1),
        }

    def _learn(self, batch: Sequence[Sample]) -> dict[str, float]:
        progress, shuffle = (
            self.iteration / self.settings.iterations,
            random.Random(f"{self.run.seed}/{self.iteration}"),
        )
        found: dict[str, float] = self.learners.call("iterate", batch, progress=progress, shuffle=shuffle)
        return found

    async def _evaluate(self) -> None:
        """Greedy answers to the dev questions. The policy is kept when it is the best so far, question by question."""
        out = self.out / "dev" / f"{self.iteration:04d}"
        episodes = await self.rollouts.run(self.policy.whole(self._weights()), self.run.dev, out=out)
        worths = [worth(episode, self.shaped, self.settings.price) for episode in episodes]
        if all(row["iteration"] != self.iteration for row in self.dev_history):
            mean = {"dev_worth": fmean([x for x in worths if x is not None] or [0.0])}
            self.dev_history.append({"iteration": self.iteration, **summary(episodes, self.run.reward), **mean})
        row = next(row for row in self.dev_history if row["iteration"] == self.iteration)
        if self.best is None or better(worths, self.best_worths, self.settings.keep_errors):
            self.best, self.best_worths = row, worths
            self.policy.keep(self._weights())
            self._checkpoint()  # says which weights these are
        log.info("rl iteration %d: dev %s %.3f", self.iteration, self.run.reward, row["dev_reward"])

    def _weights(self) -> Path:
        return self.policy.weights(self.iteration, self.learner.actor)

    def _checkpoint(self) -> None:
        state = {
            "iteration": self.iteration,
            "history": self.history,
            "dev_history": self.dev_history,
            "best": self.best,
            "best_worths": self.best_worths,
            "learner": self.learner.state(),
        }
        with files.replacing(self.out / CHECKPOINT) as temporary:
            torch.save(state, temporary)
        self._write_history()

    def _together(self) -> Together:
        """The learner, and its copies in other processes."""
        s, path = self.settings, self.out / CHECKPOINT
        there = path if path.is_file() else None
        copied = partial(Learner, self.algorithm, self.policy.base, s, seed=self.run.seed, checkpoint=there)
        return Together(self.learner, s.processes, copied)

    def _load_checkpoint(self) -> None:
        path = self.out / CHECKPOINT
        if path.is_file():
            state = self.learner.load(path)
            self.iteration, self.best, self.best_worths = state["iteration"], state["best"], state["best_worths"]
            self.history, self.dev_history = state["history"], state["dev_history"]
            log.info("rl: going on after iteration %d of %d", self.iteration, self.settings.iterations)

    def _write_history(self) -> None:
        files.write_csv(self.out / "history.csv", self.history)
        files.write_csv(self.out / "dev.csv", self.dev_history)

    def _finish(self, stopped: str) -> dict[str, Any]:
        """Publish the best policy. What a resumed run would need goes last, since this may be cut short as well."""
        assert self.best is not None  # the first iteration starts with an evaluation
        metrics = {
            "algorithm": self.algorithm.name,
            "iterations": self.iteration,
            "stopped": stopped,
            "best_iteration": self.best["iteration"],
            "dev_reward": self.best["dev_reward"],
            "dev_questions": len(self.run.dev),
            "first": self.dev_history[0],
            "last": self.dev_history[-1],
        }
        metrics["policy"] = self.policy.publish(self.manifest | {"metrics": metrics}).version
        self._write_history()
        files.write_json(self.out / METRICS, metrics)
        self._clean()
        return metrics

    def _clean(self) -> None:
        """Remove what only a run that goes on would need."""
        (self.out / CHECKPOINT).unlink(missing_ok=True)
        self.policy.clean()

"""The tree of one question, grown by running the system's coroutine once for each trajectory.

Systems are deterministic between decisions, so a trajectory is given by the choices made in it. When a decision draws
several actions, the run that came first goes on with the first. Each of the others starts one more run. That run is fed
the recorded results up to the fork, and takes another action there. Calls are kept by their content, so a fork and a
resume after a crash are one mechanism.

A *point* is a state in which a decision is due. Its identity is what led there: its branch, its prompt and its grammar. A
choice is named by its point, and a run by the choices in which it differs from the first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dragoman.core.errors import EngineFault, PromptTooLong, Refused, RetrieverFault, UserError
from dragoman.core.types import Passage, Question
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.calls import Calls, Observe, digest
from dragoman.rollout.context import Choices, RunContext, TrajectoryEnded
from dragoman.rollout.decisions import Decisions
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.figures import busy_seconds
from dragoman.rollout.record import Episode, Trajectory
from dragoman.systems.base import Outcome, StopReason, System

log = logging.getLogger(__name__)


class Tree:
    """Grows the tree of one question into an episode.

    Args:
        recorded: values of calls that an interrupted run of this tree has finished, by id.
        remember: called with the id and the value of each new call, before anything depends on it.
        reward: what the trajectories are scored by, once all are there. Those without an answer, by a fault or by a limit of
            the tree, are not. Where the LLM was not to be asked for one, a reward that reads none tells.
        observe: called with every node and call as it is made.
    """

    def __init__(
        self,
        question: Question,
        system: System,
        backends: Backends,
        *,
        exploration: Exploration = GREEDY,
        seed: int = 0,
        recorded: Mapping[str, Any] | None = None,
        remember: Callable[[str, Any], None] = lambda id, value: None,
        reward: Reward | None = None,
        observe: Observe = lambda event: None,
    ) -> None:
        self.question, self.system, self.reward = question, system, reward
        self.calls = Calls(question, backends, seed, recorded or {}, remember, observe)
        self.decisions = Decisions(question, exploration, seed, self.calls)
        self.trajectories: dict[str, Trajectory] = {}
        """By the choices that name their run."""
        self.kept: dict[str, tuple[Passage, ...]] = {}
        """The passages that a trajectory ended with, as the LLM was given them, by the same."""
        self._runs: asyncio.TaskGroup

    async def grow(self, *, key: str = "", system_name: str = "", config: dict[str, Any] | None = None) -> Episode:
        """Run the system until no fork is left to follow.

        Raises:
            UserError: bad input, which is for the user to mend: it stops the whole tree.
        """
        started, clock = time.time(), time.monotonic()
        try:
            async with asyncio.TaskGroup() as self._runs:
                self._start({})
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:  # calls are shielded from the runs that wait for them, so an interrupted tree has some under way
            await self.decisions.cancel()
            await self.calls.cancel()
        seconds = time.monotonic() - clock + busy_seconds(self.calls.replayed.values())
        await asyncio.gather(*map(self._score, self.trajectories))
        return Episode(
            key=key,
            question=self.question.to_json(),
            system=system_name,
            config=config or {},
            nodes=sorted(self.decisions.nodes.values(), key=lambda n: (n.depth, n.point)),
            calls=sorted(self.calls.made.values(), key=lambda c: c.id),
            trajectories=[self.trajectories[name] for name in sorted(self.trajectories)],
            started=started,
            seconds=seconds,
        )

    def _start(self, choices: Choices) -> None:
        self._runs.create_task(self._run(choices))

    async def _run(self, choices: Choices) -> None:
        """One trajectory. Whatever goes wrong in it is its record, and does not touch the others."""
        ctx = RunContext(self.decisions, self.calls, choices, self._start)
        error = None
        try:
            outcome = await self.system.run(self.question, ctx)
        except TrajectoryEnded as e:
            outcome, error = Outcome("", stop=e.reason), str(e)
        except PromptTooLong as e:
            outcome, error = Outcome("", stop=StopReason.PROMPT_TOO_LONG), str(e)
        except Refused as e:
            outcome, error = Outcome("", stop=StopReason.REFUSED), str(e)
        except EngineFault as e:
            outcome, error = Outcome("", stop=StopReason.ENGINE_FAULT), str(e)
        except RetrieverFault as e:
            outcome, error = Outcome("", stop=StopReason.RETRIEVER_FAULT), str(e)
        except UserError:
            raise
        except Exception as e:
            log.exception("question %s: the system failed", self.question.id)
            outcome, error = Outcome("", stop=StopReason.SYSTEM_FAULT), f"{type(e).__name__}: {e}"
        if outcome.stop is StopReason.EMPTY_ANSWER and ctx.unasked:
            outcome = replace(outcome, stop=StopReason.NOT_ASKED)
        run = digest(sorted(choices.items())) if choices else ""
        self.kept[run] = outcome.passages
        self.trajectories[run] = Trajectory(
            nodes=[step for step in ctx.steps if step in self.decisions.nodes],
            steps=ctx.steps,
            answer=None if outcome.stop.is_fault or outcome.stop.is_cut else outcome.answer,
            passages=[p.id for p in outcome.passages],
            stop=outcome.stop,
            error=error,
        )

    async def _score(self, run: str) -> None:
        trajectory = self.trajectories[run]
        unasked = trajectory.stop is StopReason.NOT_ASKED and self.reward is not None and not self.reward.needs_answers
        if self.reward is not None and (unasked or trajectory.answer is not None):
            scored = await self.reward.scored(self.question, trajectory, self.kept[run])
            trajectory.rewards, trajectory.reward_fault = scored.values, scored.fault

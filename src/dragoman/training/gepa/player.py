"""What GEPA asks of a system, from a thread of its own: answers under other instructions, and rewritten ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gepa import EvaluationBatch
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from dragoman.core.errors import Fault, UserError
from dragoman.core.journal import Journal, digest
from dragoman.core.progress import Advance
from dragoman.core.types import Question
from dragoman.engines.base import Engine
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems.base import System
from dragoman.training.gepa.lessons import acting, lessons, reflection
from dragoman.training.gepa.settings import GepaParams
from dragoman.training.gepa.waiting import Waiting, halting

log = logging.getLogger(__name__)


@dataclass
class Player:
    """Plays candidates, which are instructions by role. It is what GEPA calls an adapter.

    GEPA would log what fails here and go on without it, so that all of it is `halting`.

    GEPA draws the same from the same seed and the same scores. So a run that was cut short is made again from its beginning:
    what was answered then is in `store`, and what was written in `replies`.
    """

    name: str
    system: System
    backends: Backends
    reward: Reward
    reflection: Engine
    settings: GepaParams
    seed: int
    store: EpisodeStore
    replies: Journal
    waiting: Waiting
    advance: Advance
    reflections: int = 0
    """How often the reflection model was asked."""

    def evaluate(
        self, batch: Sequence[Question], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Episode, str]:
        """Greedy answers to the questions under a candidate, with their scores."""
        episodes, scores = self.waiting.wait(self._play(batch, candidate))
        answers = [episode.trajectories[0].answer or "" for episode in episodes]
        return EvaluationBatch(outputs=answers, scores=scores, trajectories=episodes)

    def make_reflective_dataset(
        self, candidate: dict[str, str], batch: EvaluationBatch[Episode, str], roles: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What there is to learn from a batch for each of these roles."""
        with halting():
            played = list(zip(batch.trajectories or (), batch.scores, strict=True))
            return {role: [row for episode, score in played for row in lessons(episode, role, score)] for role in roles}

    def propose_new_texts(
        self, candidate: dict[str, str], examples: Mapping[str, Sequence[Mapping[str, Any]]], roles: list[str]
    ) -> dict[str, str]:
        """A rewritten text for each of these roles. One that the system cannot take, or that is the same, is left out."""
        with halting():
            texts = {role: self._rewritten(role, candidate, examples[role]) for role in roles}
            return {role: text for role, text in texts.items() if text is not None and text != candidate[role]}

    def _rewritten(self, role: str, candidate: dict[str, str], examples: Sequence[Mapping[str, Any]]) -> str | None:
        """A new text for a role; None where the system cannot take it."""
        reply = self.waiting.wait(self._reflect(candidate[role], examples))
        text: str = InstructionProposalSignature.output_extractor(reply)["new_instruction"]
        try:
            self.system.with_instructions({**candidate, role: text})
        except UserError as e:
            log.info("gepa: a rewriting is left out: %s", e)
            return None
        return text

    async def _play(self, batch: Sequence[Question], candidate: Mapping[str, str]) -> tuple[list[Episode], list[float]]:
        unique = list({question.id: question for question in batch}.values())  # GEPA fills a last minibatch up
        episodes = await roll_out(
            unique,
            self.name,
            self.system.with_instructions(candidate),
            self.backends,
            self.store,
            seed=self.seed,
            concurrency=self.settings.concurrency,
            reward=self.reward,
            progress=lambda episode: self.advance(),
        )
        self.advance(steps=len(batch) - len(unique))
        played = {question.id: episode for question, episode in zip(unique, episodes, strict=True)}
        scores = {id: self._score(id, episode) for id, episode in played.items()}
        return [played[question.id] for question in batch], [scores[question.id] for question in batch]

    def _score(self, id: str, episode: Episode) -> float:
        """What its only trajectory has earned: the least possible where a limit cut it short.

        Raises:
            Fault: an engine, the retriever, the system or the reward failed. The next run asks the question again.
            UserError: there is no score.
        """
        (trajectory,) = episode.trajectories
        if trajectory.stop.is_fault:
            raise Fault(f"question {id}: {trajectory.stop}: {trajectory.error}; run the same command to go on")
        score, lowest = trajectory.rewards.get(self.reward.name), self.reward.bounds[0]
        if score is None and trajectory.reward_fault:
            raise Fault(f"question {id}: {trajectory.reward_fault}; run the same command to go on")
        if score is None and trajectory.stop.is_cut and math.isfinite(lowest):
            return lowest
        if score is None:
            raise UserError(
                f"gepa: train.reward ({self.reward.name}) has no score for the answer to question {id}, and each needs one: "
                "leave the question out, or set another reward"
            )
        return score

    async def _reflect(self, instructions: str, examples: Sequence[Mapping[str, str]]) -> str:
        settings = self.settings
        request = reflection(
            instructions,
            examples,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=self.seed + self.reflections,
        )
        self.reflections += 1

        async def ask() -> str:
            (result,) = await self.reflection.generate([request])
            written = result.completions[0]
            if written.finish_reason == "length":
                log.warning("gepa: a rewriting was cut after %d tokens and left out", settings.max_tokens)
                return ""
            return written.text

        reply: str = await self.replies.get(digest(self.reflection.fingerprint, request), ask)
        return reply


def next_role(
    state: Any, episodes: Sequence[Episode], scores: Sequence[float], parent: int, candidate: Mapping[str, str]
) -> list[str]:
    """The role whose instructions are rewritten next: each in turn, of those that have acted."""
    acted, turns = acting(episodes), state.named_predictor_id_to_update_next_for_program_candidate
    roles = [*candidate]
    place = next(
        i % len(roles) for i in range(turns[parent], turns[parent] + len(roles)) if roles[i % len(roles)] in acted
    )
    turns[parent] = (place + 1) % len(roles)
    return [roles[place]]

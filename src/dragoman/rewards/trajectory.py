"""What a finished trajectory has earned: every score of its answer, by name."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.core.types import Question
from dragoman.engines.base import Engine
from dragoman.rewards.answer import scores
from dragoman.rewards.judge import judge


@dataclass(frozen=True)
class Rewards:
    """The matches with the acceptable answers and, where there is a judge, its verdict as `judge`.

    A score that could not be given is None, which is not a zero: the question has no acceptable answer, or the judge failed.
    """

    judge: Engine | None = None

    @classmethod
    def for_training(cls, name: str, llm: Engine) -> Rewards:
        """Those among which the reward called `name` is; the judge is only asked when it is needed."""
        return cls(judge=llm if name == "judge" else None)

    async def of(self, question: Question, answer: str) -> dict[str, float | None]:
        if not question.answers:
            return {}
        earned = scores(answer, question.answers)
        if self.judge is not None:
            earned["judge"] = await judge(self.judge, question.question, question.answers, answer) if answer else 0.0
        return earned

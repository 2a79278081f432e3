"""What a proxy must beat first: the LLM alone, which answers from memory."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.core.types import Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, StopReason, System


@dataclass(frozen=True)
class Direct(System):
    answer_tokens: int = 48

    async def run(self, question: Question, ctx: Context) -> Outcome:
        return await answer(ctx, question, [], StopReason.ANSWERED, words=0, max_tokens=self.answer_tokens)


SYSTEM = Direct

"""What a proxy must beat: the LLM alone, and the LLM with whatever the question itself retrieves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dragoman.core.types import Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, Role, StopReason


@dataclass(frozen=True)
class Direct:
    """The LLM answers from memory."""

    answer_tokens: int = 48

    roles: ClassVar[tuple[Role, ...]] = ()

    async def run(self, question: Question, ctx: Context) -> Outcome:
        return await answer(ctx, question, [], StopReason.ANSWERED, words=0, max_tokens=self.answer_tokens)


@dataclass(frozen=True)
class Standard:
    """Standard RAG: the question is the query, and the LLM sees all that is found."""

    k: int = 5
    passage_words: int = 100
    answer_tokens: int = 48

    roles: ClassVar[tuple[Role, ...]] = ()

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        return await answer(
            ctx, question, found, StopReason.ANSWERED, words=self.passage_words, max_tokens=self.answer_tokens
        )

"""Standard RAG: the question is the query, and the LLM sees all that is found."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.core.types import Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, StopReason, System


@dataclass(frozen=True)
class Standard(System):
    k: int = 5
    """Passages per search."""
    passage_words: int = 100
    """Each passage is cut to this many words."""
    answer_tokens: int = 48

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        return await answer(
            ctx, question, found, StopReason.ANSWERED, words=self.passage_words, max_tokens=self.answer_tokens
        )


SYSTEM = Standard

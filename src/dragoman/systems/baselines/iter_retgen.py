"""Iter-RetGen (Shao et al. 2023, arXiv 2305.15294): each answer is put behind the question, and both are the next query."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.core.types import Question
from dragoman.systems.base import Context, Outcome
from dragoman.systems.baselines import Baseline


@dataclass(frozen=True)
class IterRetGen(Baseline):
    rounds: int = 3
    """Searches, each with an answer."""

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        for _ in range(self.rounds - 1):
            draft = await self.draft(ctx, question, found)
            query = f"{question.question} {draft}".strip()
            found = await ctx.retrieve(query, k=self.k)  # instead of those before, not beside them
        return await self.answer(ctx, question, found)


SYSTEM = IterRetGen

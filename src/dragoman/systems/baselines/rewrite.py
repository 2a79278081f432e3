"""QueryRewrite (Ma et al. 2023, arXiv 2305.14283), the frozen form: the LLM writes the queries, then answers from what all find."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dragoman.core.types import Passage, Question
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, interleaved, items


@dataclass(frozen=True)
class Rewrite(Baseline):
    queries: int = 3
    """Queries at most."""
    max_documents: int = 10
    """Passages for the LLM."""
    query_tokens: int = 64

    async def run(self, question: Question, ctx: Context) -> Outcome:
        written = await ctx.ask(asking("rewrite", self.query_tokens), question=question.question, n=self.queries)
        queries, stop = items(written)[: self.queries], StopReason.ANSWERED
        if not queries:  # as if nothing had been rewritten
            queries, stop = [question.question], StopReason.UNREADABLE_REPLY
        found = await ctx.parallel({query: partial(self._search, query) for query in queries})
        return await self.answer(ctx, question, interleaved(found.values(), self.max_documents), stop)

    async def _search(self, query: str, ctx: Context) -> list[Passage]:
        return await ctx.retrieve(query, k=self.k)


SYSTEM = Rewrite

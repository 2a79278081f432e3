"""MAPS (section 3): three agents around a growing pool of queries and passages, each with a policy of its own.

The first query is the question. A judge says whether the pool suffices. While it does not, a query extension agent asks for
what is missing. At last the pool is answered from: by an answer agent, as in the paper, or by the frozen LLM.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from dragoman.core.types import Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Context, Outcome, Role, StopReason, System
from dragoman.systems.maps import marks, roles
from dragoman.systems.maps.actions import Sufficient
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.options import check_bias


@dataclass(frozen=True)
class MAPS(Settings, System):
    views = 2  # names have their initials, and no 's
    turned_after_training = frozenset({"bias"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bias(self.bias, marks.KINDS)

    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Section 3.5: the retrieval step, then the answer step."""
        pool, stop = await self._gather(question.question, ctx, self._most_rounds(question))
        if not pool.passages:
            stop = StopReason.EMPTY_POOL
        if self.answers == "llm":
            return await answer(
                ctx, question, pool.passages, stop, words=self.passage_words, max_tokens=self.answer_tokens
            )
        said = await ctx.act(self.answer_agent, question=question.question, pool=pool)  # eq. 11
        return Outcome(said.text, pool.passages, stop)

    def _most_rounds(self, question: Question) -> int:
        """N. What is drawn follows from the id alone, so that each trajectory of a question has as many rounds."""
        if self.rounds == "drawn":
            return random.Random(f"rounds {question.id}").randint(0, self.max_rounds)
        return self.max_rounds

    async def _gather(self, question: str, ctx: Context, rounds: int) -> tuple[Pool, StopReason]:
        """The pool that is answered from, and why it is no larger."""
        found = await ctx.retrieve(question, k=self.k)
        pool = Pool().extended(question, found, self.max_documents)  # eq. 8: Q_0, C_0
        for _ in range(rounds):
            if len(pool.passages) >= self.max_documents:
                return pool, StopReason.DOCUMENT_LIMIT
            if await self._suffices(ctx, question, pool):  # eq. 10, of round 0 too, as in the case study
                return pool, StopReason.ANSWERED
            extended = await self._extend(ctx, question, pool)  # eq. 9: Q_n+1, C_n+1
            if extended is pool:
                return pool, StopReason.REPEATED_QUERY
            pool = extended
        return pool, StopReason.DEPTH_LIMIT if self.rounds == "judged" else StopReason.ANSWERED

    async def _suffices(self, ctx: Context, question: str, pool: Pool) -> bool:
        """D. An empty pool needs no judge; without one, no pool suffices."""
        if self.rounds != "judged" or not pool.passages:
            return False
        return isinstance(await ctx.act(self.judge_agent, question=question, pool=pool), Sufficient)

    async def _extend(self, ctx: Context, question: str, pool: Pool) -> Pool:
        """The pool with one more search; the same pool where the agent repeats a query. Without it, the question's next page."""
        query, page = question, len(pool.searches)
        if self.extension == "agent":
            query, page = (await ctx.act(self.query_agent, question=question, pool=pool)).query, 0
            if pool.has_asked(query):
                return pool
        return pool.extended(query, await ctx.retrieve(query, k=self.k, page=page), self.max_documents)

    @property
    def roles(self) -> tuple[Role, ...]:
        extends = (self.query_agent,) if self.extension == "agent" else ()
        judges = (self.judge_agent,) if self.rounds == "judged" else ()
        answers = (self.answer_agent,) if self.answers == "agent" else ()
        return (*extends, *judges, *answers)

    @cached_property
    def query_agent(self) -> Role:
        return roles.query_extension(self)

    @cached_property
    def judge_agent(self) -> Role:
        return roles.judge(self)

    @cached_property
    def answer_agent(self) -> Role:
        return roles.answer(self)

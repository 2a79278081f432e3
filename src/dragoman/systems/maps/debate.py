"""The debate that makes snapshots where no oracle can: three roles of the frozen LLM around a pool (appendix B).

A proponent argues that the pool suffices. An opponent concedes, or ends with a query for what is missing. A moderator names
the winner. Its pools are what it is for, so it does without an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dragoman.core.text import plain_line
from dragoman.core.types import Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason, System
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.roles import pool_text
from dragoman.systems.maps.settings import Settings
from dragoman.systems.prompts import load

ARGUMENT_TOKENS = 128
_CONCEDED = re.compile(r"\[Concede\]", re.I)
_QUERY = re.compile(r"\[Query\]\s*\[?(?!Concede\])([^\n\[\]]*\w[^\n\[\]]*)", re.I)  # in brackets of its own, or not


@dataclass(frozen=True)
class Debate(Settings, System):
    async def run(self, question: Question, ctx: Context) -> Outcome:
        """At most `max_rounds` rounds, until the opponent concedes or the moderator sides with the proponent."""
        pool, stop = await self._gather(question.question, ctx)
        return Outcome("", pool.passages, stop)

    async def _gather(self, question: str, ctx: Context) -> tuple[Pool, StopReason]:
        """The last pool, and why the debate ended there."""
        pool = Pool().extended(question, await ctx.retrieve(question, k=self.k), self.max_documents)
        for _ in range(self.max_rounds):
            if len(pool.passages) >= self.max_documents:
                return pool, StopReason.DOCUMENT_LIMIT
            query = await self._missing(question, pool, ctx)
            if query is None:
                return pool, StopReason.UNREADABLE_REPLY
            if not query:
                return pool, StopReason.ANSWERED
            if pool.has_asked(query):
                return pool, StopReason.REPEATED_QUERY
            pool = pool.extended(query, await ctx.retrieve(query, k=self.k), self.max_documents)
        return pool, StopReason.DEPTH_LIMIT

    async def _missing(self, question: str, pool: Pool, ctx: Context) -> str | None:
        """The opponent's query; empty where the pool is held to suffice, None where it neither concedes nor asks."""
        state: dict[str, Any] = {"question": question, "pool": pool_text(pool, self.passage_words)}
        against = await ctx.ask(_ask("opponent", ARGUMENT_TOKENS), **state)
        query = _QUERY.search(against)
        if query is None:
            return "" if _CONCEDED.search(against) else None
        pro = await ctx.ask(_ask("proponent", ARGUMENT_TOKENS), **state)
        winner = await ctx.ask(_ask("moderator", 8), **state, proponent=pro.strip(), opponent=against.strip())
        return "" if winner.strip().lower().startswith("proponent") else plain_line(query[1])


def _ask(name: str, max_tokens: int) -> Ask:
    return Ask(name, load(__package__, name), view=lambda **state: state, max_tokens=max_tokens)

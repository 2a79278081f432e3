"""The searcher of mRAG (section 3.1.2 and algorithm 2): reads a few documents, and decides whether to read on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dragoman.core.types import Passage
from dragoman.systems.base import Context, Role
from dragoman.systems.mrag import queries, roles
from dragoman.systems.mrag.actions import Change, End, More
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import Errand
from dragoman.systems.prompts import Messages, number


@dataclass(frozen=True)
class Searcher:
    settings: Settings

    async def run(self, ctx: Context, question: str, errand: Errand) -> Errand:
        """Algorithm 2, as far as `max_reads` allows. A query that was asked before gives its next page."""
        state: dict[str, Any] = {"question": question, "errand": errand}
        first = await ctx.act(self.query, **state)
        errand = errand.said(self.query.grammar(**state).render(first))
        query = first.query or queries.whole(self.settings, question)
        while errand.pages(query) < self.settings.max_pages:
            page = errand.pages(query)
            found = await ctx.retrieve(query, k=self.settings.k, page=page)
            errand = errand.asks(query, last_page=len(found) < self.settings.k)
            errand, move = await self._read(ctx, question, errand, errand.new(found))
            match move:
                case End():
                    break
                case Change(query=new):
                    query = new or queries.whole(self.settings, question)
        return errand

    async def _read(
        self, ctx: Context, question: str, errand: Errand, passages: Sequence[Passage]
    ) -> tuple[Errand, More | Change | End]:
        """The errand with the verdicts on documents, and what comes next: in one decision as text, in two at marks."""
        if self.settings.decide == "marks":
            if passages:
                kept = await ctx.act(self.select, question=question, errand=errand, passages=passages)
                errand = errand.read(passages, kept.relevant)
            return errand, await ctx.act(self.move, question=question, errand=errand)
        state: dict[str, Any] = {"question": question, "errand": errand, "passages": passages}
        move = await ctx.act(self.read, history=self._earlier(question, errand), **state)
        errand = errand.said(self.read.grammar(**state).render(move), shown=number(passages, self.settings.proxy_words))
        return errand.read(passages, move.relevant), move

    def _earlier(self, question: str, errand: Errand) -> Messages:
        """The searcher's dialogue so far. It begins with the errand, before anything was found."""
        return (*self.query.messages({"question": question, "errand": errand}), *errand.turns)

    @cached_property
    def query(self) -> Role:
        return roles.searcher_query(self.settings)

    @cached_property
    def read(self) -> Role:
        return roles.searcher_read(self.settings)

    @cached_property
    def select(self) -> Role:
        return roles.searcher_select(self.settings)

    @cached_property
    def move(self) -> Role:
        return roles.searcher_move(self.settings)

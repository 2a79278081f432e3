"""C-3PO (Guo et al. 2025): one proxy in three roles between a retriever and an LLM.

The reasoning router picks a strategy (section 4.2): answer directly, search once, or plan. The information filter keeps
what the LLM should see. Under a plan the LLM writes a roadmap once. The decision maker then searches along it, until it
hands over to the LLM or a limit is met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.systems.answer import answer
from dragoman.systems.base import Ask, Context, Outcome, Role, StopReason, System
from dragoman.systems.c3po import marks, roles
from dragoman.systems.c3po.actions import Answer, KeepAll, NoRetrieval, Plan, Search
from dragoman.systems.c3po.queries import objective
from dragoman.systems.c3po.settings import Settings
from dragoman.systems.evidence import joined, pieces
from dragoman.systems.options import check_bias


@dataclass(frozen=True)
class C3PO(Settings, System):
    views = 3  # names have their initials, and a long question is searched for with its end
    turned_after_training = frozenset({"bias"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bias(self.bias, marks.KINDS)
        names = [role.name for role in self.roles]  # and their prompts are read, rewritten ones too
        if unknown := sorted({*(self.rewritten or {})} - {*names}):
            raise UserError(f"rewritten: no agent is called {unknown[0]!r}; they are {', '.join(names)}")

    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Algorithm 1 (appendix A.4), with the states of appendix B.2."""
        match await ctx.act(self.router, question=question.question):  # a1, of S1 = {q}
            case NoRetrieval():  # direct answering
                kept, stop = [], StopReason.ANSWERED
            case Search(query=query):  # single pass
                kept, stop = await self._search(ctx, question, query), StopReason.ANSWERED
            case Plan():  # multi-step reasoning
                kept, stop = await self._multi_step(ctx, question)
        if len(kept) > self.max_documents:
            kept, stop = kept[: self.max_documents], StopReason.DOCUMENT_LIMIT
        return await answer(ctx, question, kept, stop, words=self.passage_words, max_tokens=self.answer_tokens)

    async def _multi_step(self, ctx: Context, question: Question) -> tuple[list[Passage], StopReason]:
        """A roadmap, then the retrieval-filter loop."""
        plan = await ctx.ask(self.roadmap_ask, question=question.question) if self.roadmap else ""  # eq. 13: S1 -> S3
        kept: list[Passage] = []
        asked: list[str] = []
        depth = 1  # the router's decision
        while depth + 2 <= self.max_depth:  # a search costs two decisions: the query and the selection
            match await ctx.act(
                self.decision_maker, question=question.question, roadmap=plan, kept=kept, asked=asked
            ):  # a3
                case Answer():
                    return kept, StopReason.ANSWERED
                case Search(query=query, thought=thought):  # eq. 14: S3 -> S2, with the current objective
                    page = asked.count(query)  # the same query again means: show me more
                    asked.append(query)
                    aim = objective(self, query, thought, question.question)
                    kept += await self._search(ctx, question, query, aim, page, kept)  # eq. 15: S2 -> the new S3
            if len(kept) >= self.max_documents:
                return kept[: self.max_documents], StopReason.DOCUMENT_LIMIT
            depth += 2
        return kept, StopReason.DEPTH_LIMIT

    async def _search(
        self,
        ctx: Context,
        question: Question,
        query: str,
        aim: str = "",
        page: int = 0,
        kept: Sequence[Passage] = (),
    ) -> list[Passage]:
        """Search, then let the information filter select from what is not yet `kept`."""
        known = {passage.id for passage in kept}
        found = [passage for passage in await ctx.retrieve(query, k=self.k, page=page) if passage.id not in known]
        if not found:
            return []
        # eq. 12: S1 -> S2 = {q, retrieved documents}; a2, of S2
        listed = pieces(found) if self.keep == "sentences" else found
        selected = await ctx.act(self.filter, question=question.question, objective=aim, passages=listed)
        taken = listed if isinstance(selected, KeepAll) else [listed[i - 1] for i in selected.ids]
        return joined(found, taken) if self.keep == "sentences" else taken

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.router, self.filter, self.decision_maker)

    @property
    def instructions(self) -> Mapping[str, str]:
        """Of each agent; none where prompts are brief, unless they were rewritten."""
        own: Mapping[str, str] = {}
        if self.prompts == "full":
            prompts = {role.name: role.prompt.text for role in self.roles}
            own = marks.INSTRUCTIONS if self.decide == "marks" else prompts
        return {**own, **(self.rewritten or {})}

    def with_instructions(self, texts: Mapping[str, str]) -> Self:
        """With these texts, and full prompts for agents that have none among them. For errors see `System`."""
        return replace(self, prompts="full", rewritten={**(self.rewritten or {}), **texts})

    @cached_property
    def router(self) -> Role:
        return roles.router(self)

    @cached_property
    def filter(self) -> Role:
        return roles.information_filter(self)

    @cached_property
    def decision_maker(self) -> Role:
        return roles.decision_maker(self)

    @cached_property
    def roadmap_ask(self) -> Ask:
        return roles.roadmap(self)

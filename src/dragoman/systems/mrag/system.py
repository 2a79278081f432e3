"""mRAG: a coordinator that calls one agent at a time, sees what it says, and decides when the response is good.

Planner, searcher, summarizer, reasoner and validator are the proxy in other roles. Answerer and reviser are the frozen LLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dragoman.core.errors import PromptTooLong
from dragoman.core.types import Question
from dragoman.systems.base import Context, Outcome, Role, StopReason, System
from dragoman.systems.mrag import agents, marks, roles
from dragoman.systems.mrag.actions import (
    AGENTS,
    Answer,
    Finish,
    Look,
    Plan,
    Reason,
    Revise,
    Search,
    Summarize,
    Validate,
)
from dragoman.systems.mrag.responses import respond, revise
from dragoman.systems.mrag.searcher import Searcher
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import NOTHING_NEW, Errand, State, Turn
from dragoman.systems.options import check_bias
from dragoman.systems.prompts import Prompt, number


@dataclass(frozen=True)
class MRAG(Settings, System):
    views = 2  # at marks the coordinator is shown which searches and documents were new
    turned_after_training = frozenset({"bias"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bias(self.bias, marks.KINDS)

    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Algorithm 1. Where the calls are used up before there is a response, the answerer is called at last.

        Of S those documents are returned that the response was written from: else a search after it would be paid as evidence.
        """
        state, stop = await self._coordinate(question, ctx)
        if not state.response:
            state = await respond(self, ctx, question, state, Answer())
        return Outcome(state.response, state.read, stop if state.response else StopReason.EMPTY_ANSWER)

    async def _coordinate(self, question: Question, ctx: Context) -> tuple[State, StopReason]:
        """What was gathered and written, and why it is no more."""
        state = State()
        for _ in range(self.max_calls):
            role = self.next_call if state.turns else self.first_call
            before: dict[str, Any] = {"question": question.question, "state": state}
            history = roles.earlier(self.first_call, question.question, state)
            try:
                call = await ctx.act(role, history=history, **before)
                if isinstance(call, Finish):
                    return state, StopReason.ANSWERED
                state, heard = await self._call(ctx, question, state, call)
            except PromptTooLong:  # the response that it has is returned, as where the calls are used up
                if not state.response:
                    raise
                return state, StopReason.DEPTH_LIMIT
            turn = Turn(AGENTS[type(call)], role.grammar(**before).render(call), heard)
            state = replace(state, turns=(*state.turns, turn))
            if state.repeats(self.max_repeats):
                return state, StopReason.REPEATED_CALL
        return state, StopReason.DEPTH_LIMIT

    async def _call(self, ctx: Context, question: Question, state: State, call: Any) -> tuple[State, str]:
        """What an agent makes of the state, and what the coordinator hears of it."""
        asked: dict[str, Any] = {"question": question.question, "state": state}
        information = getattr(call, "information", "") or state.gathered(self.proxy_words)
        match call:
            case Plan():
                plan = (await ctx.act(self.planner_agent, **asked, information=information)).steps
                return replace(state, plan=plan), "Plan: " + ("; ".join(plan) or "(none)")
            case Summarize():
                said = (await ctx.act(self.summarizer_agent, **asked, information=information)).summary
                return replace(state, notes=(*state.notes, said)), f"Summary: {said}"
            case Reason(aspect=aspect):
                steps = (await ctx.act(self.reasoner_agent, **asked, information=information, aspect=aspect)).steps
                said = "; ".join(steps) or "(none)"
                return replace(state, notes=(*state.notes, said)), f"Analysis: {said}"
            case Validate():
                verdict = await ctx.act(self.validator_agent, **asked, information=information)
                return replace(state, verdict=verdict), verdict.told
            case Search():
                return await self._search(ctx, question.question, state, call, information)
            case Look(query=query):
                return await self._look(ctx, query or question.question, state)
            case Revise():
                state = await revise(self, ctx, state, call)
            case _:
                state = await respond(self, ctx, question, state, call)
        return state, f"Response: {state.response or '(empty)'}"

    async def _search(
        self, ctx: Context, question: str, state: State, call: Search, information: str
    ) -> tuple[State, str]:
        """The searcher's errand."""
        errand = Errand(information, call.suggestions, state.documents, state.asked)
        errand = await self.searcher.run(ctx, question, errand)
        after = state.with_documents(errand.found, errand.asked, self.max_documents)
        return after, self._told("Relevant documents", state, after)

    async def _look(self, ctx: Context, query: str, state: State) -> tuple[State, str]:
        """A search of the coordinator itself, which keeps what it finds."""
        found = await ctx.retrieve(query, k=self.k, page=state.asked.count(query))
        known = {passage.id for passage in state.documents}
        new = [passage for passage in found if passage.id not in known]
        after = state.with_documents(new, (*state.asked, query), self.max_documents)
        return after, self._told("Documents", state, after)

    def _told(self, what: str, before: State, after: State) -> str:
        """The documents that have come, without those beyond the limit: the answerer will not have them either."""
        new = after.documents[len(before.documents) :]
        return f"{what}:\n{number(new, self.proxy_words)}" if new else NOTHING_NEW

    @property
    def roles(self) -> tuple[Role, ...]:
        team = {
            "searcher": self.searcher.query,
            "planner": self.planner_agent,
            "summarizer": self.summarizer_agent,
            "reasoner": self.reasoner_agent,
            "validator": self.validator_agent,
        }
        return (self.first_call, *(role for name, role in team.items() if name in agents.team(self)))

    @property
    def trained_prompts(self) -> Mapping[str, Prompt]:
        later = {"coordinator_next": self.next_call.prompt, "searcher_next": self.searcher.read.prompt}
        return {**super().trained_prompts, **later}

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(self)

    @cached_property
    def first_call(self) -> Role:
        return roles.coordinator(self, first=True)

    @cached_property
    def next_call(self) -> Role:
        return roles.coordinator(self, first=False)

    @cached_property
    def planner_agent(self) -> Role:
        return roles.planner(self)

    @cached_property
    def summarizer_agent(self) -> Role:
        return roles.summarizer(self)

    @cached_property
    def reasoner_agent(self) -> Role:
        return roles.reasoner(self)

    @cached_property
    def validator_agent(self) -> Role:
        return roles.validator(self)

"""The `Context` of one run of a system's coroutine: replays the past that was chosen for it, then goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from dragoman.core.types import Passage
from dragoman.rollout.calls import Calls, digest
from dragoman.rollout.decisions import Decision, Decisions
from dragoman.systems.base import Ask, Context, Role, StopReason
from dragoman.systems.options import rendered
from dragoman.systems.prompts import Messages

T = TypeVar("T")
Choices = dict[str, int]
"""Which of the actions at a point a run takes, where that is not the first."""


class TrajectoryEnded(Exception):
    """Raised through a system's coroutine when its trajectory cannot go on."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RunContext:
    """The `Context` of one run, or of one of its parallel branches.

    Args:
        choices: those of the whole run.
        fork: starts another run with the choices that it is given.
    """

    def __init__(self, decisions: Decisions, calls: Calls, choices: Choices, fork: Callable[[Choices], None]) -> None:
        self.decisions, self.calls, self.choices, self.fork = decisions, calls, choices, fork
        # This branch's share of what the tree may have: a function of its past alone.
        self.nodes_left: float = decisions.exploration.max_nodes or math.inf
        self.tokens_left: float = decisions.exploration.max_tokens or math.inf
        self.ways = 1  # among how many siblings its share was divided, all forks of the past taken together
        self.past = ""  # identity of what led here; empty at the root
        self.node: str | None = None
        self.depth = 0
        self.joins: list[str] = []
        self.choices_made: Choices = {}  # those of this branch's past
        self.steps: list[str] = []
        self.unasked = False  # whether the LLM would have been asked for the answer, and was not

    async def act(self, role: Role, *, history: Messages = (), **state: Any) -> Any:
        """See `Context.act`."""
        grammar, options = role.grammar(**state), role.options(**state) if role.options else None
        if options is None:
            messages, constraint = role.messages(state, history), grammar.constraint()
            allowed = constraint and (constraint.regex or constraint.json_schema)
        else:
            messages, allowed = (("user", rendered(options)),), None
        point = digest([self.past, role.name, messages, allowed])
        if self.nodes_left < 1 or self.tokens_left <= 0:
            reason = StopReason.NODE_LIMIT if self.nodes_left < 1 else StopReason.TOKEN_LIMIT
            raise TrajectoryEnded(reason, f"{role.name}: this branch has used up its share of the tree")
        # Only the choices in this point's past belong to a fork. What parallel branches chose meanwhile depends on timing,
        # and a tree must not.
        ids = await self.decisions.draw(
            Decision(
                point=point,
                role=role,
                messages=messages,
                grammar=grammar,
                options=options,
                state=state,
                parent=self.node,
                joins=self.joins,
                depth=self.depth + 1,
                nodes_left=self.nodes_left,
            ),
            lambda choice: self.fork({**self.choices_made, point: choice}),
        )
        choice = self.choices.get(point, 0)
        if choice:
            self.choices_made[point] = choice
        self.past = self.node = ids[choice]
        self.depth, self.joins = self.depth + 1, []
        self.steps.append(self.node)
        siblings = [self.decisions.nodes[i] for i in ids]
        self.ways *= len(ids)
        self.nodes_left = (self.nodes_left - len(ids)) / len(ids)
        tokens = siblings[0].prompt_tokens + sum(n.completion_tokens for n in siblings)
        self.tokens_left = (self.tokens_left - tokens) / len(ids)
        if stop := siblings[choice].stop:
            raise TrajectoryEnded(stop, f"{role.name}: {siblings[choice].text[:120]!r}")
        return self.decisions.actions[self.node]

    async def ask(self, ask: Ask, *, history: Messages = (), **state: Any) -> str:
        """See `Context.ask`."""
        if ask.final and not self._asks_at_the_end:
            self.unasked = True
            return ""
        return (await self.ask_all(ask, history=history, **state))[0]

    async def ask_all(self, ask: Ask, *, history: Messages = (), **state: Any) -> tuple[str, ...]:
        """See `Context.ask_all`."""
        call = await self.calls.ask(ask, *ask.prompts(state, history))
        self.tokens_left -= call.prompt_tokens + call.completion_tokens
        self.steps.append(call.id)
        return (call.output,) if isinstance(call.output, str) else tuple(call.output)

    @property
    def _asks_at_the_end(self) -> bool:
        """Whether the LLM is to answer. Where no gold passages are known, the answer alone can tell what was right."""
        return self.decisions.exploration.answers or not self.decisions.question.supporting_ids

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        """See `Context.retrieve`."""
        call, passages = await self.calls.search(query, k, page)
        self.steps.append(call.id)
        return list(passages)

    async def parallel(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]]) -> dict[str, T]:
        """See `Context.parallel`."""
        contexts = {name: self._branch(name, len(branches)) for name in branches}
        results = await asyncio.gather(*(branches[n](contexts[n]) for n in branches), return_exceptions=True)
        ends: list[str] = []
        for ctx in contexts.values():  # in the order of the names, not of the clock
            self.choices_made |= ctx.choices_made
            self.steps += ctx.steps
            self.unasked |= ctx.unasked
            if ctx.joins:  # it ended with parallel branches of its own, or none has acted since those before it
                ends += ctx.joins
            elif ctx.node is not None and ctx.node != self.node:
                ends.append(ctx.node)
        self.joins = list(dict.fromkeys(ends)) if contexts else self.joins
        self.depth = max([self.depth, *(ctx.depth for ctx in contexts.values())])
        if contexts:
            # What a branch has left is for every combination of it with what the others chose: its part of that is
            # 1 over their ways, which add up to 1 over all combinations (Kraft).
            ways = math.prod(ctx.ways for ctx in contexts.values())
            self.nodes_left = sum(ctx.nodes_left * ctx.ways for ctx in contexts.values()) / ways
            self.tokens_left = sum(ctx.tokens_left * ctx.ways for ctx in contexts.values()) / ways
            self.ways *= ways
        self.past = digest([self.past, "join", [ctx.past for ctx in contexts.values()]])
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return dict(zip(branches, results, strict=True))  # type: ignore[arg-type]

    def _branch(self, name: str, of: int) -> RunContext:
        branch = RunContext(self.decisions, self.calls, self.choices, self.fork)
        branch.past = digest([self.past, "branch", name])
        branch.node, branch.depth, branch.choices_made = self.node, self.depth, dict(self.choices_made)
        branch.joins = list(self.joins)
        branch.nodes_left, branch.tokens_left = self.nodes_left / of, self.tokens_left / of
        return branch

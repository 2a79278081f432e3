"""The tree of one question, grown by running the system's coroutine again and again.

The transition functions of the papers are deterministic, so a trajectory is given by the choices made in it. When a
decision draws several actions, the run that came first goes on with the first of them, and one more run of the same
coroutine is started for each of the others: it is fed the recorded results up to the fork, and goes its own way from
there. The record of finished calls is kept by content, so replaying a fork and replaying after a crash are one thing.

A *point* is a state in which a decision is due. Its identity is what led there: the point's own branch, the state's
prompt and the grammar. A choice is named by its point, and a run by the choices in which it differs from the first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from dragoman.core.errors import EngineFault, RetrieverFault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Completion, Request, Result
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Call, Episode, Node, Trajectory, action_to_json
from dragoman.systems.base import Ask, Context, Gold, Outcome, Role, StopReason, System
from dragoman.systems.grammar import Grammar, HallucinatedIndex, InvalidAction
from dragoman.systems.prompts import Messages

T = TypeVar("T")
log = logging.getLogger(__name__)


class TrajectoryEnded(Exception):
    """Raised through a system's coroutine when its trajectory cannot go on."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Tree:
    """Grows the tree of one question into an episode.

    `recorded` maps the ids of calls that an earlier, interrupted run has finished to their values; `remember` is called
    with each newly finished call before anything depends on it; `observe` sees every node and call as it is made.
    """

    def __init__(
        self,
        question: Question,
        system: System,
        backends: Backends,
        *,
        exploration: Exploration = Exploration(),
        seed: int = 0,
        recorded: Mapping[str, Any] | None = None,
        remember: Callable[[str, Any], None] = lambda id, value: None,
        observe: Callable[[Node | Call], None] = lambda event: None,
    ) -> None:
        self.question, self.system, self.backends = question, system, backends
        self.exploration, self.seed = exploration, seed
        self.recorded, self.remember, self.observe = recorded or {}, remember, observe
        self.nodes: dict[str, Node] = {}
        self.actions: dict[str, Any] = {}  # by node id
        self.calls: dict[str, Call] = {}
        self.passages: dict[str, Passage] = {}  # all that were found, by id
        self.trajectories: dict[str, Trajectory] = {}  # by the choices that name the run
        self._once: dict[str, asyncio.Future[Any]] = {}
        self._runs: asyncio.TaskGroup

    async def grow(self, *, key: str = "", system_name: str = "", config: dict[str, Any] | None = None) -> Episode:
        started, clock = time.time(), time.monotonic()
        try:
            async with asyncio.TaskGroup() as self._runs:
                self._start({})
        except BaseExceptionGroup as group:  # bad input is for the user to mend: it stops the whole run
            raise group.exceptions[0] from None
        finally:  # calls are shielded from the runs that wait for them, so an interrupted tree has some under way
            pending = [call for call in self._once.values() if not call.done()]
            for call in pending:
                call.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return Episode(
            key=key,
            question=self.question.to_json(),
            system=system_name,
            config=config or {},
            nodes=sorted(self.nodes.values(), key=lambda n: (n.depth, n.id)),
            calls=sorted(self.calls.values(), key=lambda c: c.id),
            trajectories=[self.trajectories[name] for name in sorted(self.trajectories)],
            started=started,
            seconds=time.monotonic() - clock,
        )

    def _start(self, choices: dict[str, int]) -> None:
        self._runs.create_task(self._run(choices))

    async def _run(self, choices: dict[str, int]) -> None:
        """One trajectory. Whatever goes wrong in it is its record, and does not touch the others."""
        ctx = _RunContext(self, choices)
        error = None
        try:
            outcome = await self.system.run(self.question, ctx)
        except TrajectoryEnded as e:
            outcome, error = Outcome("", stop=e.reason), str(e)
        except EngineFault as e:
            outcome, error = Outcome("", stop=StopReason.ENGINE_FAULT), str(e)
        except RetrieverFault as e:
            outcome, error = Outcome("", stop=StopReason.RETRIEVER_FAULT), str(e)
        except UserError:
            raise
        except Exception as e:
            log.exception("question %s: the system failed", self.question.id)
            outcome, error = Outcome("", stop=StopReason.SYSTEM_FAULT), f"{type(e).__name__}: {e}"
        self.trajectories[_digest(sorted(choices.items())) if choices else ""] = Trajectory(
            nodes=[step for step in ctx.steps if step in self.nodes],
            steps=ctx.steps,
            answer=None if outcome.stop.is_fault or outcome.stop.is_cut else outcome.answer,
            passages=[p.id for p in outcome.passages],
            stop=outcome.stop,
            error=error,
        )

    async def once(self, id: str, compute: Callable[[], Awaitable[T]]) -> T:
        """Share what is computed under `id` among all runs of this tree."""
        if id not in self._once:
            self._once[id] = asyncio.ensure_future(compute())
        # shielded: a run that ends must not take the value from the others
        value: T = await asyncio.shield(self._once[id])
        return value

    async def call(self, id: str, compute: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The value of a call to the outside: as recorded by an earlier run, or computed, timed and recorded now."""
        if id in self.recorded:
            value: dict[str, Any] = self.recorded[id]
        else:
            started, clock = time.time(), time.monotonic()
            value = await compute()
            value |= {"started": started, "seconds": time.monotonic() - clock}
            self.remember(id, value)
        return value

    async def draw(
        self,
        ctx: _RunContext,
        point: str,
        role: Role,
        messages: Messages,
        grammar: Grammar,
        state: Mapping[str, Any],
    ) -> list[str]:
        """Draw the actions at a point and start a run for each but the first. Returns their node ids."""
        depth = ctx.depth + 1
        kinds = grammar.alternatives() if depth <= self.exploration.force else [grammar]
        if depth > 1 and ctx.nodes_left < len(kinds):
            kinds = [grammar]
        constraint = grammar.constraint()
        requests = [
            Request(
                prompt=messages,
                max_tokens=role.max_tokens,
                n=int(min(self.exploration.draws(depth), max(1, ctx.nodes_left / len(kinds)))),
                temperature=self.exploration.temperature,
                stop=role.stop,
                grammar=kind.constraint(),
                # a greedy request needs no seed: without one, equal requests of different questions are one
                seed=_seed(self.seed, self.question.id, point) if self.exploration.temperature else 0,
            )
            for kind in kinds
        ]

        async def compute() -> dict[str, Any]:
            told = await self._told(role, grammar, state)
            results = told or await self.backends.engine_of(role.name, self.backends.proxy).generate(requests)
            return {"results": [r.to_json() for r in results], "told": bool(told)}

        drawn = await self.call(point, compute)
        forced = len(kinds) > 1 or drawn.get("told", False)
        ids: list[str] = []
        by_action: dict[Any, Node] = {}
        for result in map(Result.from_json, drawn["results"]):
            for completion in result.completions:
                action, stop = _parse(grammar, completion.text, truncated=completion.finish_reason == "length")
                if twin := by_action.get((stop, action)):
                    twin.merged += 1
                    continue
                node = Node(
                    id=_digest([point, len(ids)]),
                    parent=ctx.node,
                    joins=ctx.joins,
                    point=point,
                    role=role.name,
                    depth=depth,
                    prompt=list(messages),
                    prompt_ids=list(result.prompt_ids),
                    completion_ids=list(completion.token_ids),
                    logprobs=list(completion.logprobs),
                    text=completion.text,
                    action=None if stop else action_to_json(action),
                    stop=stop,
                    forced=forced,
                    grammar=constraint and asdict(constraint),
                    temperature=self.exploration.temperature,
                    started=drawn["started"],
                    seconds=drawn["seconds"],
                    prompt_tokens=result.prompt_tokens,
                    completion_tokens=len(completion.token_ids) or result.completion_tokens // len(result.completions),
                    cached_tokens=result.cached_tokens,
                )
                by_action[(stop, action)] = self.nodes[node.id] = node
                self.actions[node.id] = action
                ids.append(node.id)
                self.observe(node)
        for i in range(1, len(ids)):
            # Only the choices in this point's past belong to the fork: what parallel branches chose meanwhile depends on
            # timing, and a tree must not.
            self._start({**ctx.choices_made, point: i})
        return ids

    async def _told(self, role: Role, grammar: Grammar, state: Mapping[str, Any]) -> list[Result]:
        """What the role's oracle says, as if an engine had said it that reports no tokens; nothing without an oracle.

        Raises:
            UserError: the backends is an oracle's, and there is none, or it does not know what to do; or it has to write a thought.
        """
        question = self.question
        known = question.supporting_ids
        if self.backends.oracle and role.oracle is None:
            raise UserError(f"the role {role.name!r} has no oracle")
        if self.backends.oracle and not known:
            raise UserError(f"question {question.id}: an oracle needs its supporting_ids, and it has none")
        if role.oracle is None or not known or not (self.exploration.oracle or self.backends.oracle):
            return []
        gold = Gold(frozenset(known), self._find, question.answers, question.triples)
        actions = await role.oracle(gold, **state)
        if self.backends.oracle and not actions:
            raise UserError(
                f"question {question.id}: what is known of it does not tell the oracle of {role.name!r} what to do"
            )
        try:
            texts = [grammar.render(action) for action in actions]
        except InvalidAction as e:
            raise UserError(f"the oracle of {role.name!r} cannot act here, where it writes no thoughts: {e}") from None
        return [Result((), (Completion(text, (), (), "stop"),), 0, 0) for text in texts]

    async def _find(self, query: str, k: int) -> list[str]:
        (hits,) = await self.backends.retriever_of(self.question).search([query], k, 0)
        return [hit.passage.id for hit in hits]


class _RunContext:
    """The `Context` of one run of the coroutine, or of one of its parallel branches."""

    def __init__(self, tree: Tree, choices: dict[str, int], *, tip: str = "", node: str | None = None, depth: int = 0):
        self.tree, self.choices = tree, choices
        # this branch's share of what the tree may have: a function of its past alone
        self.nodes_left: float = tree.exploration.max_nodes or math.inf
        self.tokens_left: float = tree.exploration.max_tokens or math.inf
        self.fan = 1  # among how many siblings its share was divided, all forks of the past taken together
        self.tip = tip  # identity of this branch's past; empty at the root
        self.node, self.depth, self.joins = node, depth, list[str]()
        self.choices_made: dict[str, int] = {}  # those that are not the first, in this branch's past
        self.steps: list[str] = []

    async def act(self, role: Role, *, history: Messages = (), **state: Any) -> Any:
        messages, grammar = role.messages(state, history), role.grammar(**state)
        constraint = grammar.constraint()
        point = _digest([self.tip, role.name, messages, constraint and (constraint.regex or constraint.json_schema)])
        tree = self.tree
        if self.nodes_left < 1 or self.tokens_left <= 0:
            reason = StopReason.NODE_LIMIT if self.nodes_left < 1 else StopReason.TOKEN_LIMIT
            raise TrajectoryEnded(reason, f"{role.name}: this branch has used up its share of the tree")
        ids = await tree.once(point, lambda: tree.draw(self, point, role, messages, grammar, state))
        choice = self.choices.get(point, 0)
        if choice:
            self.choices_made[point] = choice
        self.tip = self.node = ids[choice]
        self.depth, self.joins = self.depth + 1, []
        self.steps.append(self.node)
        siblings = [tree.nodes[i] for i in ids]
        self.fan *= len(ids)
        self.nodes_left = (self.nodes_left - len(ids)) / len(ids)
        read = siblings[0].prompt_tokens + sum(n.completion_tokens for n in siblings)
        self.tokens_left = (self.tokens_left - read) / len(ids)
        if stop := tree.nodes[self.node].stop:
            raise TrajectoryEnded(stop, f"{role.name}: {tree.nodes[self.node].text[:120]!r}")
        return tree.actions[self.node]

    async def ask(self, ask: Ask, *, history: Messages = (), **state: Any) -> str:
        messages = ask.messages(state, history)
        id = _digest(["ask", ask.name, messages])
        request = Request(prompt=messages, max_tokens=ask.max_tokens, stop=ask.stop)
        backends = self.tree.backends

        async def compute() -> dict[str, Any]:
            (result,) = await backends.engine_of(ask.name, backends.llm).generate([request])
            return {
                "text": result.completions[0].text,
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
            }

        value = await self.tree.once(id, lambda: self.tree.call(id, compute))
        text: str = value["text"]
        self.tokens_left -= value["prompt_tokens"] + value["completion_tokens"]
        self._note(
            Call(
                id=id,
                kind="ask",
                name=ask.name,
                input=list(messages),
                output=text,
                started=value["started"],
                seconds=value["seconds"],
                prompt_tokens=value["prompt_tokens"],
                completion_tokens=value["completion_tokens"],
            )
        )
        return text

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        id = _digest(["search", query, k, page])

        async def compute() -> dict[str, Any]:
            (hits,) = await self.tree.backends.retriever_of(self.tree.question).search([query], k, page)
            return {"passages": [[h.passage.id, h.passage.title, h.passage.text] for h in hits]}

        value = await self.tree.once(id, lambda: self.tree.call(id, compute))
        passages = [Passage(*p) for p in value["passages"]]
        self.tree.passages |= {p.id: p for p in passages}
        self._note(
            Call(
                id=id,
                kind="search",
                name="search",
                input={"query": query, "k": k, "page": page},
                output=[p.id for p in passages],
                started=value["started"],
                seconds=value["seconds"],
            )
        )
        return passages

    async def parallel(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]]) -> dict[str, T]:
        contexts = {}
        for name in branches:
            contexts[name] = ctx = _RunContext(
                self.tree, self.choices, tip=_digest([self.tip, "branch", name]), node=self.node, depth=self.depth
            )
            ctx.choices_made = dict(self.choices_made)
            ctx.nodes_left, ctx.tokens_left = self.nodes_left / len(branches), self.tokens_left / len(branches)
        results = await asyncio.gather(*(branches[n](contexts[n]) for n in branches), return_exceptions=True)
        for ctx in contexts.values():  # in the order of the names, not of the clock
            self.choices_made |= ctx.choices_made
            self.steps += ctx.steps
            if ctx.node is not None and ctx.node != self.node:
                self.joins.append(ctx.node)
        self.depth = max([self.depth, *(ctx.depth for ctx in contexts.values())])
        if contexts:
            # What a branch has left is for every combination of it with what the others chose: its part of that is
            # 1 over their fans, which add up to 1 over all combinations (Kraft).
            fan = math.prod(ctx.fan for ctx in contexts.values())
            self.nodes_left = sum(ctx.nodes_left * ctx.fan for ctx in contexts.values()) / fan
            self.tokens_left = sum(ctx.tokens_left * ctx.fan for ctx in contexts.values()) / fan
            self.fan *= fan
        self.tip = _digest([self.tip, "join", [ctx.tip for ctx in contexts.values()]])
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return dict(zip(branches, results, strict=True))  # type: ignore[arg-type]

    def _note(self, call: Call) -> None:
        if call.id not in self.tree.calls:
            self.tree.calls[call.id] = call
            self.tree.observe(call)
        self.steps.append(call.id)


def _parse(grammar: Grammar, text: str, *, truncated: bool) -> tuple[Any, StopReason | None]:
    try:
        return grammar.parse(text), None
    except HallucinatedIndex:
        return text, StopReason.HALLUCINATED_INDEX
    except InvalidAction:
        return text, StopReason.TRUNCATED_ACTION if truncated else StopReason.INVALID_ACTION


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def _seed(*parts: Any) -> int:
    return int(_digest(parts)[:8], 16) >> 1  # 31 bits: what every engine accepts

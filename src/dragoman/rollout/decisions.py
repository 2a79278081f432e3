"""The decisions of one tree: what is drawn in a state, and the node of each action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.single_flight import SingleFlight
from dragoman.core.types import Question
from dragoman.engines.base import Completion, Request, Result
from dragoman.rollout.calls import Calls, digest, seed_of
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Node, action_to_json
from dragoman.systems.base import Gold, Role, StopReason
from dragoman.systems.grammar import Grammar, HallucinatedIndex, InvalidAction
from dragoman.systems.prompts import Messages


@dataclass(frozen=True)
class Decision:
    """A state in which a role has to act. `point` is its identity; `parent`, `joins` and `depth` are those of `Node`."""

    point: str
    role: Role
    messages: Messages
    grammar: Grammar
    state: Mapping[str, Any]
    parent: str | None
    joins: list[str]
    depth: int
    nodes_left: float
    """How many nodes this branch of the tree may still have."""


class Decisions:
    """Draws actions at each point once, and keeps them. `actions` are by the id of their node, as are `nodes`."""

    def __init__(self, question: Question, exploration: Exploration, seed: int, calls: Calls) -> None:
        self.question, self.exploration, self.seed, self.calls = question, exploration, seed, calls
        self.backends = calls.backends
        self.nodes: dict[str, Node] = {}
        self.actions: dict[str, Any] = {}
        self._single = SingleFlight[str, list[str]](keep=True)

    async def draw(self, decision: Decision, fork: Callable[[int], None]) -> list[str]:
        """The ids of the nodes at a point. `fork` starts a run for each but the first, when they are drawn."""
        return await self._single.run(decision.point, lambda: self._draw(decision, fork))

    async def cancel(self) -> None:
        """Stop what is being drawn."""
        await self._single.cancel()

    async def _draw(self, decision: Decision, fork: Callable[[int], None]) -> list[str]:
        kinds: Sequence[Grammar] = [decision.grammar]
        if decision.depth <= self.exploration.force:
            alternatives = decision.grammar.alternatives()
            if decision.depth == 1 or decision.nodes_left >= len(alternatives):
                kinds = alternatives
        requests = self._requests(decision, kinds)
        role = decision.role

        async def compute() -> dict[str, Any]:
            oracle = await self._from_oracle(decision)
            results = oracle or await self.backends.engine_of(role.name, self.backends.proxy).generate(requests)
            return {"results": [r.to_json() for r in results], "from_oracle": bool(oracle)}

        drawn = await self.calls.value(decision.point, compute)
        forced = len(kinds) > 1 or drawn["from_oracle"]
        constraint = decision.grammar.constraint()
        by_action: dict[Any, Node] = {}
        for result in map(Result.from_json, drawn["results"]):
            for completion in result.completions:
                truncated = completion.finish_reason == "length"
                action, stop = _parse(decision.grammar, completion.text, truncated=truncated)
                if equal := by_action.get((stop, action)):
                    equal.merged += 1
                    continue
                node = Node(
                    id=digest([decision.point, len(by_action)]),
                    parent=decision.parent,
                    joins=decision.joins,
                    point=decision.point,
                    role=role.name,
                    depth=decision.depth,
                    prompt=list(decision.messages),
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
                by_action[stop, action] = self.nodes[node.id] = node
                self.actions[node.id] = action
                self.calls.observe(node)
        for choice in range(1, len(by_action)):
            fork(choice)
        return [node.id for node in by_action.values()]

    def _requests(self, decision: Decision, kinds: Sequence[Grammar]) -> list[Request]:
        """One request for each kind of action that is drawn by itself."""
        share = max(1, decision.nodes_left / len(kinds))
        temperature = self.exploration.temperature
        # A greedy request needs no seed: without one, equal requests of different questions are one.
        seed = seed_of(self.seed, self.question.id, decision.point) if temperature else 0
        return [
            Request(
                prompt=decision.messages,
                max_tokens=decision.role.max_tokens,
                n=int(min(self.exploration.draws(decision.depth), share)),
                temperature=temperature,
                stop=decision.role.stop,
                grammar=kind.constraint(),
                seed=seed,
            )
            for kind in kinds
        ]

    async def _from_oracle(self, decision: Decision) -> list[Result]:
        """The oracle's actions, as results of an engine that reports no tokens. Empty where the engine decides.

        Raises:
            UserError: the oracle plays the proxy, and there is none, or it does not know what to do; or it lacks a thought.
        """
        question, role, only = self.question, decision.role, self.backends.oracle
        known = question.supporting_ids
        if only and role.oracle is None:
            raise UserError(f"the role {role.name!r} has no oracle")
        if only and not known:
            raise UserError(f"question {question.id}: an oracle needs its supporting_ids, and it has none")
        if role.oracle is None or not known or not (only or self.exploration.oracle):
            return []
        gold = Gold(frozenset(known), self._find, question.answers, question.triples)
        actions = await role.oracle(gold, **decision.state)
        if only and not actions:
            raise UserError(
                f"question {question.id}: what is known of it does not tell the oracle of {role.name!r} what to do"
            )
        try:
            texts = [decision.grammar.render(action) for action in actions]
        except InvalidAction as e:
            raise UserError(f"the oracle of {role.name!r} cannot act here, where it writes no thoughts: {e}") from None
        return [Result((), (Completion(text, (), (), "stop"),), 0, 0) for text in texts]

    async def _find(self, query: str, k: int) -> list[str]:
        (hits,) = await self.calls.retriever.search([query], k, 0)
        return [hit.passage.id for hit in hits]


def _parse(grammar: Grammar, text: str, *, truncated: bool) -> tuple[Any, StopReason | None]:
    try:
        return grammar.parse(text), None
    except HallucinatedIndex:
        return text, StopReason.HALLUCINATED_INDEX
    except InvalidAction:
        return text, StopReason.TRUNCATED_ACTION if truncated else StopReason.INVALID_ACTION

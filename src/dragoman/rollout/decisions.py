"""The decisions of one tree: what is drawn in a state, and the node of each action."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from dragoman.core.errors import UserError
from dragoman.core.single_flight import SingleFlight
from dragoman.core.types import Question
from dragoman.corpus.chunking import gold_id
from dragoman.engines.base import Completion, Engine, Request, Result
from dragoman.rollout.calls import Calls, digest, seed_of
from dragoman.rollout.choosing import Taken, draw
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Marked, Node, action_to_json
from dragoman.systems.base import Gold, Role, StopReason
from dragoman.systems.grammar import Grammar, HallucinatedIndex, InvalidAction
from dragoman.systems.grammar.base import Kind
from dragoman.systems.options import Options, biased, kinds_of, scoring
from dragoman.systems.prompts import Messages


@dataclass(frozen=True)
class Decision:
    """A state in which a role has to act. `point` is its identity; `parent`, `joins` and `depth` are those of `Node`."""

    point: str
    role: Role
    messages: Messages
    grammar: Grammar
    options: Options | None
    """Of a role that scores what it may do. None where it writes."""
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
        drawn = await (
            self._written(decision) if decision.options is None else self._marked(decision, decision.options)
        )
        ids = []
        for place, (action, node) in enumerate(drawn):
            node.id = digest([decision.point, place])
            ids.append(node.id)
            self.nodes[node.id], self.actions[node.id] = node, action
            self.calls.observe(node)
        for choice in range(1, len(ids)):
            fork(choice)
        return ids

    async def _written(self, decision: Decision) -> list[tuple[Any, Node]]:
        """Different actions, and their nodes, that a policy has written, or an oracle would have."""
        kinds: Sequence[Grammar] = [decision.grammar]
        if decision.depth <= self.exploration.force:
            alternatives = decision.grammar.alternatives()
            if decision.depth == 1 or decision.nodes_left >= len(alternatives):
                kinds = alternatives
        requests = self._requests(decision, kinds)

        async def compute() -> dict[str, Any]:
            oracle = await self._written_by_oracle(decision)
            results = oracle or await self._engine(decision).generate(requests)
            return {"results": [r.to_json() for r in results], "from_oracle": bool(oracle)}

        drawn = await self.calls.value(decision.point, compute)
        forced = len(kinds) > 1 and not drawn["from_oracle"]
        forced_to = [cast(Kind, kind).cls.__name__ for kind in kinds] if forced else [""] * len(drawn["results"])
        constraint = decision.grammar.constraint()
        by_action: dict[Any, tuple[Any, Node]] = {}
        for kind, result in zip(forced_to, map(Result.from_json, drawn["results"]), strict=True):
            for completion in result.completions:
                truncated = completion.finish_reason == "length"
                action, stop = _parse(decision.grammar, completion.text, truncated=truncated)
                if equal := by_action.get((stop, action)):
                    equal[1].merged += 1
                    continue
                node = self._node(
                    decision,
                    drawn,
                    result,
                    completion_ids=list(completion.token_ids),
                    logprobs=list(completion.logprobs),
                    text=completion.text,
                    action=None if stop else action_to_json(action),
                    stop=stop,
                    forced=len(kinds) > 1 or drawn["from_oracle"],
                    forced_to=kind,
                    grammar=constraint and asdict(constraint),
                    completion_tokens=len(completion.token_ids) or result.completion_tokens // len(result.completions),
                )
                by_action[stop, action] = action, node
        return list(by_action.values())

    async def _marked(self, decision: Decision, options: Options) -> list[tuple[Any, Node]]:
        """Different actions, and their nodes, that a policy has chosen among options, or an oracle would have."""
        x = self.exploration
        plays = self._oracle_plays(decision)
        kinds = [] if options.many else [*kinds_of(options)]
        several = len(set(kinds))
        forced = several > 1 and decision.depth <= x.force
        forced = forced and (decision.depth == 1 or decision.nodes_left >= several)

        async def compute() -> dict[str, Any]:
            right = await self._right(decision, options) if plays or x.label else []
            if right and plays:
                return {"right": right, "from_oracle": True}
            if len(options.texts) == 1 and not options.many:  # nothing to ask
                return {"right": right, "from_oracle": False, "result": Result((), (), 0, 0, logits=(0.0,)).to_json()}
            (result,) = await self._engine(decision).generate([scoring(options)])
            return {"right": right, "from_oracle": False, "result": result.to_json()}

        drawn = await self.calls.value(decision.point, compute)
        right = [tuple(places) for places in drawn["right"]]
        rng = random.Random(seed_of(self.seed, self.question.id, decision.point))
        if drawn["from_oracle"]:
            result, logits = Result((), (), 0, 0), []
            chosen = [Taken(_noisy(rng.choice(right), options, x.noise, rng), ())]
        else:
            result = Result.from_json(drawn["result"])
            logits = biased(result.logits, options.bias)
            count = int(max(1, min(self._draws(decision), decision.nodes_left)))
            chosen = draw(logits, options.many, count, x.temperature, rng, kinds if forced else ())
        found = []
        for taken in chosen:
            action = options.action(taken.places)
            node = self._node(
                decision,
                drawn,
                result,
                completion_ids=[],
                logprobs=list(taken.logprobs),
                text=decision.grammar.render(action),
                action=action_to_json(action),
                forced=forced or drawn["from_oracle"],
                probability=taken.probability if taken.logprobs else None,
                inclusion=taken.inclusion,
                marked=Marked(
                    options=list(options.texts),
                    many=options.many,
                    kinds=kinds,
                    taken=list(taken.places),
                    logits=logits,
                    bias=list(options.bias),
                    positions=list(result.marks),
                    right=[list(places) for places in right],
                ),
                completion_tokens=0,
            )
            found.append((action, node))
        return found

    def _node(self, decision: Decision, drawn: Mapping[str, Any], result: Result, **fields: Any) -> Node:
        return Node(
            id="",
            parent=decision.parent,
            joins=decision.joins,
            point=decision.point,
            role=decision.role.name,
            depth=decision.depth,
            prompt=list(decision.messages),
            prompt_ids=list(result.prompt_ids),
            temperature=self.exploration.temperature,
            started=drawn["started"],
            seconds=drawn["seconds"],
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            **fields,
        )

    def _draws(self, decision: Decision) -> int:
        chance = random.Random(seed_of(self.seed, self.question.id, decision.point, "forks")).random()
        return self.exploration.draws(decision.role.name, decision.depth, chance)

    def _oracle_plays(self, decision: Decision) -> bool:
        return self.exploration.oracle or self.backends.is_oracle(decision.role.name)

    def _engine(self, decision: Decision) -> Engine:
        return self.backends.engine_of(decision.role.name, self.backends.proxy)

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
                n=int(min(self._draws(decision), share)),
                temperature=temperature,
                stop=decision.role.stop,
                grammar=kind.constraint(),
                seed=seed,
            )
            for kind in kinds
        ]

    async def _written_by_oracle(self, decision: Decision) -> list[Result]:
        """The oracle's actions, as results of an engine that reports no tokens. Empty where the engine decides.

        Raises:
            UserError: see `_oracle_actions`; or the oracle lacks a thought.
        """
        actions = await self._oracle_actions(decision) if self._oracle_plays(decision) else []
        try:
            texts = [decision.grammar.render(action) for action in actions]
        except InvalidAction as e:
            raise UserError(
                f"the oracle of {decision.role.name!r} cannot act here, where it writes no thoughts: {e}"
            ) from None
        return [Result((), (Completion(text, (), (), "stop"),), 0, 0) for text in texts]

    async def _right(self, decision: Decision, options: Options) -> list[tuple[int, ...]]:
        """What the oracle would take: the places of options, once for each way that is as good. Empty where none is known.

        Raises:
            UserError: see `_oracle_actions`.
        """
        actions = await self._oracle_actions(decision)
        return [options.taken(action) for action in actions]

    async def _oracle_actions(self, decision: Decision) -> Sequence[Any]:
        """
        Raises:
            UserError: the oracle plays the proxy, and there is none, or it does not know what to do.
        """
        question, role = self.question, decision.role
        only = self.backends.is_oracle(role.name)
        known = question.supporting_ids
        if only and role.oracle is None:
            raise UserError(f"the role {role.name!r} has no oracle")
        if only and not known:
            raise UserError(f"question {question.id}: an oracle needs its supporting_ids, and it has none")
        if role.oracle is None or not known:
            return []
        actions = await role.oracle(
            Gold(frozenset(known), self._find, question.answers, question.triples, question.parts), **decision.state
        )
        if only and not actions:
            raise UserError(
                f"question {question.id}: what is known of it does not tell the oracle of {role.name!r} what to do"
            )
        return actions

    async def _find(self, query: str, k: int) -> list[str]:
        (hits,) = await self.calls.retriever.search([query], k, 0)
        return [gold_id(hit.passage.id, self.question.supporting_ids) or hit.passage.id for hit in hits]


def _parse(grammar: Grammar, text: str, *, truncated: bool) -> tuple[Any, StopReason | None]:
    try:
        return grammar.parse(text), None
    except HallucinatedIndex:
        return text, StopReason.HALLUCINATED_INDEX
    except InvalidAction:
        return text, StopReason.TRUNCATED_ACTION if truncated else StopReason.INVALID_ACTION


def _noisy(right: tuple[int, ...], options: Options, noise: float, rng: random.Random) -> tuple[int, ...]:
    """What an oracle takes that is wrong about so large a share of what it sees."""
    if not options.many:
        return (rng.randrange(len(options.texts)),) if rng.random() < noise else right
    return tuple(i for i in range(len(options.texts)) if (i in right) != (rng.random() < noise))

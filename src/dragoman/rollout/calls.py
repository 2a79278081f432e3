"""The calls of one tree to the outside: equal ones are made once, and recorded before anything depends on them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dragoman.core.single_flight import SingleFlight
from dragoman.core.types import Passage, Question
from dragoman.retrieval.base import Retriever
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Call, Node
from dragoman.systems.base import Ask
from dragoman.systems.prompts import Messages

Observe = Callable[[Node | Call], None]


class Calls:
    """Makes and keeps the calls of one tree, by the content hash of what was asked.

    Args:
        seed: that of the rollout; requests that sample depend on it.
        recorded: values of calls that an interrupted run of the same tree has finished, by id.
        remember: called with the id and the value of each call as it finishes.
        observe: called with each new call of the LLM or the retriever.
    """

    def __init__(
        self,
        question: Question,
        backends: Backends,
        seed: int,
        recorded: Mapping[str, Any],
        remember: Callable[[str, Any], None],
        observe: Observe,
    ) -> None:
        self.question, self.backends, self.seed, self.observe = question, backends, seed, observe
        self.retriever: Retriever = backends.retriever_of(question)
        self.made: dict[str, Call] = {}
        self.replayed: dict[str, tuple[float, float]] = {}
        """When calls of an interrupted run started, and how long they took, for those that were not made again."""
        self._recorded, self._remember = recorded, remember
        self._asks = SingleFlight[str, Call](keep=True)
        self._searches = SingleFlight[str, tuple[Call, list[Passage]]](keep=True)

    async def value(self, id: str, compute: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The value of a call: as an earlier run recorded it, or computed, timed and recorded now."""
        if id in self._recorded:
            recorded: dict[str, Any] = self._recorded[id]
            self.replayed[id] = (recorded["started"], recorded["seconds"])
            return recorded
        started, clock = time.time(), time.monotonic()
        value = await compute() | {"started": started, "seconds": time.monotonic() - clock}
        self._remember(id, value)
        return value

    async def ask(self, ask: Ask, messages: Messages, *beside: Messages) -> Call:
        """Let the frozen LLM write. The output of the call is its text, or a list of them where there are several.

        The input of a call with several prompts is the messages of all, one prompt after the other.
        """
        sampling = [ask.temperature, ask.n, ask.seed] if ask.temperature else []
        averaged = [beside, ask.weights] if beside else []
        id = digest(["ask", ask.name, messages, *sampling, *averaged])
        request = ask.request(messages, *beside, seed=seed_of(self.seed, self.question.id, id) if sampling else 0)
        shown = [message for prompt in (messages, *beside) for message in prompt]

        async def compute() -> dict[str, Any]:
            (result,) = await self.backends.engine_of(ask.name, self.backends.llm).generate([request])
            texts = [ask.text(completion) for completion in result.completions]
            return {
                "text": texts if ask.n > 1 else texts[0],
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
                "cached": result.cached,
                "truncated": any(completion.finish_reason == "length" for completion in result.completions),
            }

        async def call() -> Call:
            value = await self.value(id, compute)
            return self._keep(value, id=id, kind="ask", name=ask.name, input=shown, output=value["text"])

        return await self._asks.run(id, call)

    async def search(self, query: str, k: int, page: int) -> tuple[Call, list[Passage]]:
        """Let the retriever search. The output of the call is the ids of the passages."""
        id = digest(["search", query, k, page])

        async def compute() -> dict[str, Any]:
            (hits,) = await self.retriever.search([query], k, page)
            return {"passages": [[h.passage.id, h.passage.title, h.passage.text] for h in hits]}

        async def call() -> tuple[Call, list[Passage]]:
            value = await self.value(id, compute)
            found = [Passage(*fields) for fields in value["passages"]]
            asked = {"query": query, "k": k, "page": page}
            made = self._keep(value, id=id, kind="search", name="search", input=asked, output=[p.id for p in found])
            return made, found

        return await self._searches.run(id, call)

    async def cancel(self) -> None:
        """Stop the calls that are under way."""
        await self._asks.cancel()
        await self._searches.cancel()

    def _keep(self, value: Mapping[str, Any], **fields: Any) -> Call:
        measured = ("started", "seconds", "prompt_tokens", "completion_tokens", "cached", "truncated")
        call = Call(**fields, **{name: value[name] for name in measured if name in value})
        self.made[call.id] = call
        self.observe(call)
        return call


def digest(value: Any) -> str:
    """The content hash that names calls, states and nodes."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def seed_of(*parts: Any) -> int:
    """A seed that follows from the parts; 31 bits, which every engine accepts."""
    return int(digest(parts)[:8], 16) >> 1

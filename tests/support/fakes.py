"""Stand-ins for the model and the search engine, for tests that are about something else."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence

from dragoman.core.types import Passage
from dragoman.engines.base import Completion, Request, Result
from dragoman.retrieval.base import Hit
from dragoman.synthesis.plan import Plan


def drawn(plan: Plan, rng: random.Random) -> dict[str, str]:
    """The categories of one question, each drawn by itself: what `Plan.deal` comes to on the average."""
    names = (*plan.core, *rng.choice(plan.combinations))
    shares = {name: {c: category.probability for c, category in plan.categorizations[name].items()} for name in names}
    return {name: rng.choices(list(of), list(of.values()))[0] for name, of in shares.items()}


Reply = str | Exception
Script = Callable[[str, random.Random], Reply]


class ScriptedEngine:
    """Answers each draw with `script(last message, random)`, where `random` is seeded by the request and the draw.

    With `jitter`, calls return in an order that has nothing to do with the order in which they were made.
    """

    fingerprint = "scripted"

    def __init__(self, script: Script, *, jitter: random.Random | None = None) -> None:
        self.script, self.jitter = script, jitter
        self.requests: list[Request] = []

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        return [await self._one(request) for request in requests]

    async def _one(self, request: Request) -> Result:
        self.requests.append(request)
        await asyncio.sleep(self.jitter.random() / 200 if self.jitter else 0)
        completions = []
        for i in range(request.n):
            grammar = request.grammar and (request.grammar.regex or request.grammar.json_schema)
            seed = hashlib.sha256(repr((request.seed, i, grammar, request.prompt)).encode()).hexdigest()
            prompt = f"{grammar or ''}\n{request.messages[-1]['content']}"
            reply = self.script(prompt, random.Random(seed))
            if isinstance(reply, Exception):
                raise reply
            ids = tuple(reply.encode(errors="replace"))
            completions.append(Completion(reply, ids, (-0.1,) * len(ids), "stop"))
        return Result((1, 2, 3), tuple(completions), 3, sum(len(c.token_ids) for c in completions), 0, "scripted")

    async def forget(self) -> None:
        pass

    async def close(self) -> None:
        pass


class ListRetriever:
    """Passages that share most words with the query, best first."""

    fingerprint = "list"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)
        self.queries: list[str] = []

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        self.queries += queries
        return [self._one(query, k, page) for query in queries]

    def _one(self, query: str, k: int, page: int) -> list[Hit]:
        words = set(query.lower().split())
        scored = sorted(
            (Hit(p, float(len(words & set(f"{p.title} {p.text}".lower().split())))) for p in self.passages),
            key=lambda h: (-h.score, h.passage.id),
        )
        return scored[page * k : (page + 1) * k]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        known = {passage.id for passage in self.passages}
        return [id for id in ids if id not in known]

    async def close(self) -> None:
        pass

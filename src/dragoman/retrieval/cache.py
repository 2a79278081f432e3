"""Remembers what a retriever found, and never runs the same search twice at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.single_flight import SingleFlight
from dragoman.core.types import Question
from dragoman.retrieval.base import Hit, PerQuestion, Retriever, missing, span, well_formed

Key = tuple[str, int, int]  # query, k, page


@dataclass(frozen=True, slots=True)
class _Remembered:
    hits: list[Hit]
    found: float
    """When, by a clock that is never set."""

    @property
    def characters(self) -> int:
        return sum(len(hit.passage.title) + len(hit.passage.text) for hit in self.hits)


class CachedRetriever:
    """Answers from memory, else from `inner`. To be used from one event loop at a time.

    Args:
        memory: how many results to hold in memory; the least recently used go first.
        characters: of their titles and texts, how many at most: a result may be of whole documents.
        max_age_s: seconds after which a result is searched for anew; None for never.

    Attributes:
        misses: queries that needed a search of their own.
    """

    def __init__(
        self,
        inner: Retriever,
        *,
        memory: int = 50_000,
        characters: int = 50_000_000,
        max_age_s: float | None = None,
    ) -> None:
        self.inner = inner
        self.fingerprint = inner.fingerprint
        self.passage_count: int | None = getattr(inner, "passage_count", None)
        self._recalled = 0
        self.misses = 0
        self._memory: OrderedDict[Key, _Remembered] = OrderedDict()
        self._most, self._most_characters = memory, characters
        self._characters = 0
        self._max_age_s = math.inf if max_age_s is None else max_age_s
        self._flight = SingleFlight[Key, list[Hit]]()

    def __repr__(self) -> str:
        return f"cached {self.inner!r}"

    def of(self, question: Question) -> Retriever:
        """See `PerQuestion`. What is found for one question alone is not remembered."""
        return self.inner.of(question) if isinstance(self.inner, PerQuestion) else self

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. A search that failed is not remembered."""
        span(k, page)
        found = await asyncio.gather(*(self._one((well_formed(query), k, page)) for query in queries))
        return [list(hits) for hits in found]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await missing(self.inner, ids)

    async def close(self) -> None:
        await self._flight.cancel()
        await self.inner.close()

    @property
    def hits(self) -> int:
        """Queries that needed no search of their own."""
        return self._recalled + self._flight.shared

    async def _one(self, key: Key) -> list[Hit]:
        known = self._memory.get(key)
        if known is not None and time.monotonic() - known.found <= self._max_age_s:
            self._recalled += 1
            self._memory.move_to_end(key)
            return known.hits
        return await self._flight.run(key, lambda: self._find(key))

    async def _find(self, key: Key) -> list[Hit]:
        self.misses += 1
        query, k, page = key
        (hits,) = await self.inner.search([query], k, page)
        if key in self._memory:  # too old
            self._characters -= self._memory.pop(key).characters
        self._memory[key] = _Remembered(hits, time.monotonic())
        self._characters += self._memory[key].characters
        while len(self._memory) > self._most or self._characters > self._most_characters:
            self._characters -= self._memory.popitem(last=False)[1].characters
        return hits

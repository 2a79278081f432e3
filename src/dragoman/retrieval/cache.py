"""Remembers what a retriever found, and never runs the same search twice at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from dragoman.core.single_flight import SingleFlight
from dragoman.core.types import Question
from dragoman.retrieval.base import Hit, PerQuestion, Retriever, missing, span, well_formed

Key = tuple[str, int, int]  # query, k, page


class CachedRetriever:
    """Answers from memory, else from `inner`. To be used from one event loop at a time.

    Args:
        memory: how many results to hold in memory; the least recently used go first.
        characters: of their titles and texts, how many at most: a result may be of whole documents.

    Attributes:
        misses: queries that needed a search of their own.
    """

    def __init__(self, inner: Retriever, *, memory: int = 50_000, characters: int = 50_000_000) -> None:
        self.inner = inner
        self.fingerprint = inner.fingerprint
        self.passage_count: int | None = getattr(inner, "passage_count", None)
        self._recalled = 0
        self.misses = 0
        self._memory: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._most, self._most_characters = memory, characters
        self._characters = 0
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
        if key in self._memory:
            self._recalled += 1
            self._memory.move_to_end(key)
            return self._memory[key]
        return await self._flight.run(key, lambda: self._find(key))

    async def _find(self, key: Key) -> list[Hit]:
        self.misses += 1
        query, k, page = key
        (hits,) = await self.inner.search([query], k, page)
        self._memory[key] = hits
        self._characters += _size(hits)
        while len(self._memory) > self._most or self._characters > self._most_characters:
            self._characters -= _size(self._memory.popitem(last=False)[1])
        return hits


def _size(hits: Sequence[Hit]) -> int:
    return sum(len(hit.passage.title) + len(hit.passage.text) for hit in hits)

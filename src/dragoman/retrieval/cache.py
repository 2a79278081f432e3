"""Remembers what a retriever found, and never runs the same search twice at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from dragoman.core.types import Question
from dragoman.retrieval.base import Hit, PerQuestion, Retriever, span, well_formed

Key = tuple[str, int, int]  # query, k, page
Found = dict[Key, list[Hit]]


class CachedRetriever:
    """Answers from memory, else from `inner`. To be used from one event loop at a time.

    Args:
        memory: how many results to hold in memory; the least recently used go first.

    Attributes:
        hits: queries that needed no search of their own. misses: queries that did.
    """

    def __init__(self, inner: Retriever, *, memory: int = 50_000) -> None:
        self.inner = inner
        self.fingerprint = inner.fingerprint
        self.passage_count: int | None = getattr(inner, "passage_count", None)
        self.hits = 0
        self.misses = 0
        self._memory: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._most = memory
        self._running: dict[Key, asyncio.Task[Found]] = {}

    def __repr__(self) -> str:
        return f"cached {self.inner!r}"

    def of(self, question: Question) -> Retriever:
        """See `PerQuestion`. What is found for one question alone is not remembered."""
        return self.inner.of(question) if isinstance(self.inner, PerQuestion) else self

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. A search that failed is not remembered."""
        span(k, page)
        keys = [(well_formed(query), k, page) for query in queries]
        new = [key for key in dict.fromkeys(keys) if key not in self._memory and key not in self._running]
        found: Found = {key: self._recall(key) for key in keys if key in self._memory}
        if new:
            task = asyncio.create_task(self._find(new))
            task.add_done_callback(lambda done: self._finished(done, new))
            self._running.update(dict.fromkeys(new, task))
        self.hits += len(keys) - len(new)
        # Shielded: when the caller that began a search is cancelled, the others still get it, and so does the cache.
        for task in {self._running[key]: None for key in keys if key not in found}:
            found.update(await asyncio.shield(task))
        return [list(found[key]) for key in keys]

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(set(self._running.values()))
        await self.inner.close()

    def _recall(self, key: Key) -> list[Hit]:
        self._memory.move_to_end(key)
        return self._memory[key]

    async def _find(self, keys: list[Key]) -> Found:
        """All keys have one k and page."""
        _, k, page = keys[0]
        self.misses += len(keys)
        return dict(zip(keys, await self.inner.search([query for query, _, _ in keys], k, page), strict=True))

    def _finished(self, task: asyncio.Task[Found], keys: list[Key]) -> None:
        for key in keys:
            del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._memory.update(task.result())
            while len(self._memory) > self._most:
                self._memory.popitem(last=False)

"""What all retrievers have in common that search a folder: its passages by rows, a thread that searches, and pages."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.retrieval.base import Hit, span
from dragoman.retrieval.manifest import Manifest
from dragoman.retrieval.store import PassageStore
from dragoman.retrieval.worker import SearchWorker


class FolderRetriever(ABC):
    """A folder that a method's `build` wrote, opened.

    Args:
        indexed: how many passages the index itself has.

    Raises:
        UserError: these are not as many as are stored there.
    """

    least = 0
    """Hits that a search has to have, however few are asked for."""

    def __init__(self, folder: Path, manifest: Manifest, indexed: int) -> None:
        self.folder = folder
        self.fingerprint = manifest.fingerprint
        self.passage_count = manifest.passages
        self._store = PassageStore(folder)
        if not indexed == len(self._store) == manifest.passages:
            raise UserError(f"{folder}: the parts of the index do not fit together: build it again")
        self._worker = SearchWorker(self._search_batch, repr(self))

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`."""
        first, last = span(k, page)
        if first >= self.passage_count:
            return [[] for _ in queries]
        depth = min(max(last, self.least), self.passage_count)
        return [hits[first:last] for hits in await self._worker.search(queries, depth)]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await asyncio.to_thread(self._store.missing, ids)

    async def close(self) -> None:
        self._worker.close()
        self._store.close()

    @abstractmethod
    def _search_batch(self, queries: list[str], depth: int) -> list[list[Hit]]:
        """The best `depth` passages for each query; none of them is blank. Called in one thread."""

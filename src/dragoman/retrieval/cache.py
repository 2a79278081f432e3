"""Remembers what a retriever found, in memory and on disk, and never runs the same search twice at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.retrieval.base import Hit, PerQuestion, Retriever, span, well_formed

logger = logging.getLogger(__name__)

Key = tuple[str, int, int]  # query, k, page
Found = dict[Key, list[Hit]]

BUSY_SECONDS = 30


class CachedRetriever:
    """Answers from memory, else from disk, else from `inner`. To be used from one event loop at a time.

    Results are kept under the fingerprint of `inner`, so another index never sees them.

    Args:
        folder: where to keep results from one run to the next, one SQLite file for each fingerprint, which several
            processes may share. None: in memory only.
        memory: how many results to hold in memory; the least recently used go first.

    Attributes:
        hits: queries that needed no search of their own. misses: queries that did.

    Raises:
        UserError: the folder holds a cache that cannot be read.
    """

    def __init__(self, inner: Retriever, folder: Path | str | None = None, *, memory: int = 50_000) -> None:
        self.inner = inner
        self.fingerprint = inner.fingerprint
        self.passage_count: int | None = getattr(inner, "passage_count", None)
        self.hits = 0
        self.misses = 0
        self._memory: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._most = memory
        self._running: dict[Key, asyncio.Task[Found]] = {}
        self._disk = None if folder is None else _Disk(Path(folder), self.fingerprint)

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
        if self._disk is not None:
            await self._disk.close()
        await self.inner.close()

    def _recall(self, key: Key) -> list[Hit]:
        self._memory.move_to_end(key)
        return self._memory[key]

    async def _find(self, keys: list[Key]) -> Found:
        """From disk or from `inner`; all keys have one k and page."""
        found = {} if self._disk is None else await self._disk.read(keys)
        missing = [key for key in keys if key not in found]
        self.hits += len(found)
        self.misses += len(missing)
        if missing:
            _, k, page = missing[0]
            searched = await self.inner.search([query for query, _, _ in missing], k, page)
            fresh = dict(zip(missing, searched, strict=True))
            if self._disk is not None:
                await self._disk.write(fresh)
            found.update(fresh)
        return found

    def _finished(self, task: asyncio.Task[Found], keys: list[Key]) -> None:
        for key in keys:
            del self._running[key]
        if not task.cancelled() and task.exception() is None:
            self._memory.update(task.result())
            while len(self._memory) > self._most:
                self._memory.popitem(last=False)


class _Disk:
    """The results of one fingerprint in an SQLite file, used from a thread of its own.

    A cache is a convenience: once open, a file that fails is logged and left, and the search goes on without it.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"searches-{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.sqlite"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dragoman-cache")
        try:
            self._thread.submit(self._open).result()
        except sqlite3.DatabaseError as e:
            self._thread.shutdown()
            raise UserError(f"{self._path}: not a search cache ({e}): delete it") from None

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS searches"
            " (query TEXT, k INTEGER, page INTEGER, hits TEXT, PRIMARY KEY (query, k, page))"
        )

    async def read(self, keys: list[Key]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, keys)

    async def write(self, found: Found) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, found)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._db.close())
        self._thread.shutdown()

    def _read(self, keys: list[Key]) -> Found:
        select = "SELECT hits FROM searches WHERE query = ? AND k = ? AND page = ?"
        found = {}
        try:
            for key in keys:
                for (hits,) in self._db.execute(select, key):
                    found[key] = [Hit(Passage(id, title, text), score) for id, title, text, score in json.loads(hits)]
        except (sqlite3.Error, ValueError) as e:
            logger.warning("%s: the search cache cannot be read (%s)", self._path, e)
        return found

    def _write(self, found: Found) -> None:
        rows = [
            (*key, files.dumps([[h.passage.id, h.passage.title, h.passage.text, h.score] for h in hits]))
            for key, hits in found.items()
        ]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as e:
            logger.warning("%s: the search cache cannot be written (%s)", self._path, e)

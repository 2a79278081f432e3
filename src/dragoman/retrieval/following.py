"""A retriever that changes over when its index is built again. For servers: a run searches one index from start to end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dragoman.core.errors import RetrieverFault
from dragoman.core.types import Question
from dragoman.retrieval import open_retriever
from dragoman.retrieval.base import Hit, Retriever, changes_unseen
from dragoman.retrieval.cache import CachedRetriever
from dragoman.retrieval.manifest import MANIFEST, Manifest
from dragoman.retrieval.settings import IndexParams

log = logging.getLogger(__name__)

Stamp = tuple[int, int]
"""Tells one manifest file from the next in its place: an index is immutable, and renamed into place as a whole."""

ASK_EVERY_S = 5.0
"""How old the knowledge of which index is there may become before a search has it looked up."""

UNSEEN_S = 600.0
"""How long results are remembered where nothing tells that others would be found by now, as of a search engine of the web."""


@dataclass(eq=False)
class _Lent:
    """An open index, and how many searches are in it."""

    retriever: CachedRetriever
    stamp: Stamp | None
    """Of the folder that it was opened from; None where a server has it, whose address may stand in that folder."""
    users: int = 0
    retired: bool = False

    async def close_if_idle(self) -> None:
        if self.retired and not self.users:
            await self.retriever.close()


class FollowingRetriever:
    """Searches what is behind `target` now: an index folder, or a server's address.

    When another index is there, it is opened beside the old one, and takes its place for the searches that follow. Nothing
    found in the old one is remembered.

    Args:
        params: see `open_retriever`.

    Raises:
        UserError: there is no index now.
    """

    def __init__(self, target: str, params: IndexParams | None = None) -> None:
        self._target, self._params = target, params
        self._lent = self._open()
        self._asked = time.monotonic()
        self._before = (0, 0)  # hits and misses of those that are closed
        self._refreshing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"following {self._lent.retriever!r}"

    @property
    def fingerprint(self) -> str:
        return self._lent.retriever.fingerprint

    @property
    def passage_count(self) -> int | None:
        return self._lent.retriever.passage_count

    @property
    def inner(self) -> Retriever:
        """The index itself, past the cache."""
        return self._lent.retriever.inner

    @property
    def hits(self) -> int:
        return self._before[0] + self._lent.retriever.hits

    @property
    def misses(self) -> int:
        return self._before[1] + self._lent.retriever.misses

    def of(self, question: Question) -> Retriever:
        """See `PerQuestion`."""
        found = self._lent.retriever.of(question)
        return self if found is self._lent.retriever else found

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. It does not wait for another index."""
        self.look()
        lent = self._lent
        try:
            return await self._search(queries, k, page)
        except RetrieverFault:
            if self._lent is lent:
                await asyncio.shield(self._refresh())  # a caller that leaves does not end it for the others
            if self._lent is lent:
                raise
            return await self._search(queries, k, page)

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`. What is asked for is the index that is searched."""
        async with self._borrowed() as retriever:
            return await retriever.missing(ids)

    def look(self) -> None:
        """Have it found out in the background whether another index is there, unless that was done a moment ago."""
        if time.monotonic() - self._asked > ASK_EVERY_S:
            self._asked = time.monotonic()
            self._refresh()

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._lent.retriever.close()

    async def _search(self, queries: Sequence[str], k: int, page: int) -> list[list[Hit]]:
        async with self._borrowed() as retriever:
            return await retriever.search(queries, k, page)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[CachedRetriever]:
        """The index that is searched now, open for as long as it is used."""
        lent = self._lent
        lent.users += 1
        try:
            yield lent.retriever
        finally:
            lent.users -= 1
            await lent.close_if_idle()

    def _refresh(self) -> asyncio.Task[None]:
        """One change-over for all callers: it opens an index in a thread, which nobody can end."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._change_over())
        return self._refreshing

    async def _change_over(self) -> None:
        """Search another index from now on, if one is there."""
        before = self._lent
        try:
            opened = await asyncio.to_thread(self._open_another, before.stamp)
        except Exception as e:
            log.warning("%s: cannot be opened again, going on with what is open: %s", self._target, e)
            return
        if opened is None:
            return
        if opened.retriever.fingerprint == before.retriever.fingerprint:
            before.stamp = opened.stamp  # built again, and the same
            await opened.retriever.close()
            return
        log.info("%s: searches the index %s from now on", self._target, opened.retriever.fingerprint)
        self._before = self.hits, self.misses
        self._lent, before.retired = opened, True
        await before.close_if_idle()

    def _open_another(self, stamp: Stamp | None) -> _Lent | None:
        """What is there, unless it is the folder with this stamp. It blocks."""
        return None if stamp is not None and stamp == self._stamp() else self._open(again=stamp is None)

    def _open(self, *, again: bool = False) -> _Lent:
        stamp = self._stamp()  # before: what takes its place meanwhile is seen the next time
        retriever = open_retriever(self._target, self._params, again=again)
        return _Lent(CachedRetriever(retriever, max_age_s=UNSEEN_S if changes_unseen(retriever) else None), stamp)

    def _stamp(self) -> Stamp | None:
        folder = Path(self._target)
        try:
            manifest = (folder / MANIFEST).stat()
        except OSError:  # of a server, or between two renames
            return None
        if Manifest.read(folder).method == "server":  # whose index changes, and the folder stays
            return None
        return manifest.st_ino, manifest.st_mtime_ns

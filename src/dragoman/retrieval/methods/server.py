"""A search server in the place of an index: the folder names it, and each search goes there.

So a pipeline searches what others have indexed. To build is to check that the server answers, and that it knows the passages
of the corpus by their ids: by those, questions name what supports them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import field_validator

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever, changes_unseen, missing
from dragoman.retrieval.health import check_ids, unknown_id
from dragoman.retrieval.http.settings import ServerParams
from dragoman.retrieval.http.wire import MOST_QUERIES
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.store import OFFSETS, PASSAGES, PassageStore, write_passages

SAMPLE = 20  # passages that are searched for; once for an index, so more than at the start of a run


class Settings(Section):
    url: str = ""
    """The server's address, as `--index` takes it: `http://...`, or `searxng+http://...`. Its key is no part of it."""
    server: ServerParams = ServerParams()
    """`index.server`: how it is asked, and the revision of what it searches."""

    @field_validator("url")
    @classmethod
    def _one_way_to_write_it(cls, url: str) -> str:
        return url.rstrip("/")


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. Nothing is indexed, and no passage is kept: the folder holds a manifest alone.

    Raises:
        UserError: also where no address is set, no server answers, or it does not know the passages.
    """
    from dragoman.retrieval.http.calls import run_apart
    from dragoman.retrieval.http.foreign import open_server

    if not settings.url:
        raise UserError(
            "index.url is not set: with method server it is the address of your search server, such as "
            "http://localhost:9000 (docs/retrieval.md says what is asked there)"
        )
    retriever = open_server(settings.url, settings.server)
    with building(folder, "server") as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        try:
            run_apart(_check(retriever, store, progress))
        except RetrieverFault as e:
            raise UserError(f"index.url: {e}") from e
        manifest = Manifest("server", corpus, len(store), _stated(settings.url, settings.server.revision, retriever))
        store.close()
        for name in (PASSAGES, OFFSETS):
            (work / name).unlink()
        manifest.write(work)
    return manifest


def open_index(folder: Path, settings: Settings = Settings()) -> ServerRetriever:
    from dragoman.retrieval.http.foreign import open_server

    built = Manifest.read(folder, "server")
    url, revision = built.settings["url"], settings.server.revision or built.settings["revision"]
    retriever = open_server(url, settings.server.model_copy(update={"revision": revision}))
    now = replace(built, settings=_stated(url, revision, retriever))
    return ServerRetriever(retriever, now.fingerprint)


class ServerRetriever:
    """The server that an index folder names, by the corpus it was checked with, and by what it says that it searches now.

    Args:
        retriever: asks the server; closed with this one.
    """

    def __init__(self, retriever: Retriever, fingerprint: str) -> None:
        self._retriever, self.fingerprint = retriever, fingerprint
        self.passage_count: int | None = getattr(retriever, "passage_count", None)
        self.changes_unseen = changes_unseen(retriever)

    def __repr__(self) -> str:
        return repr(self._retriever)

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return await self._retriever.search(queries, k, page)

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await missing(self._retriever, ids)

    async def close(self) -> None:
        await self._retriever.close()


def _stated(url: str, revision: str, retriever: Retriever) -> dict[str, Any]:
    """What tells a server's indexes apart: its address, what the settings call the index, and what the server does."""
    return {"url": url, "revision": revision, "server": retriever.fingerprint}


async def _check(retriever: Retriever, store: PassageStore, progress: Progress | None) -> None:
    """
    Raises:
        UserError: the server lacks an id, where it can say so, or finds most of a sample under other ids.
        RetrieverFault: it gave no answer.
    """
    try:
        for first in range(0, len(store), MOST_QUERIES):
            part = [store[row] for row in range(first, min(first + MOST_QUERIES, len(store)))]
            absent = set(await missing(retriever, [passage.id for passage in part]))
            if lacking := next((passage for passage in part if passage.id in absent), None):
                raise await unknown_id(retriever, lacking)
            if progress is not None:
                progress(first + len(part), len(store))
        apart = max(1, len(store) // SAMPLE)
        await check_ids(retriever, [store[row] for row in range(0, len(store), apart)][:SAMPLE])
    finally:
        await retriever.close()

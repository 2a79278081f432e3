"""BM25 over Lucene, through the anserini classes that pyserini ships.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); k1 = 0.9 and b = 0.4 are
anserini's, tuned for passages. English analysis: Porter stemmer, stop words removed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from pydantic import Field

from dragoman.core.errors import UserError
from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, span
from dragoman.retrieval.java import anserini_jar, java_class, start_java
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.store import PassageStore, indexed_text, write_passages
from dragoman.retrieval.worker import SearchWorker

LUCENE = "lucene"
INSIDE = "bm25"  # the folder of this index inside one of another method
BATCH = 1000  # documents in one call into Java


class Settings(Section):
    k1: float = Field(0.9, ge=0)
    """How soon a repeated word stops counting."""
    b: float = Field(0.4, ge=0, le=1)
    """How much long passages are held back."""
    threads: int = Field(2, ge=1)
    """Of Lucene, for the passages that are indexed and for the queries of one batch."""
    heap: str = Field("2g", pattern=r"^[1-9]\d*[kmgKMG]$")
    """The memory of Java, as `java -Xmx` takes it, where this is what starts it."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. Title and text are indexed; Lucene's ids are the rows, so that equal scores are in their order."""
    start_java(settings.heap)
    with building(folder, "bm25") as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        indexer = java_class("io.anserini.index.SimpleIndexer")(str((work / LUCENE).resolve()), False, settings.threads)
        try:
            for documents in _batches(store):
                if indexer.addRawDocuments(documents) != len(documents):
                    raise RuntimeError(f"{work}: Lucene did not take all documents")
        finally:
            indexer.close()
        kept = {"k1": float(settings.k1), "b": float(settings.b)}
        manifest = Manifest("bm25", corpus, len(store), kept, _versions())
        manifest.write(work)
        store.close()
    return manifest


def build_inside(method: str, passages: Iterable[Passage], folder: Path, settings: Settings) -> Manifest:
    """An index of another method, which searches by words: that of Lucene lies in a folder of it."""
    with building(folder, method) as work:
        inner = build(passages, work / INSIDE, settings)
        manifest = Manifest(method, inner.corpus_sha256, inner.passages, {})
        manifest.write(work)
    return manifest


def open_inside(method: str, folder: Path, settings: Settings) -> tuple[BM25Retriever, PassageStore]:
    """The search of what `build_inside` wrote, and its passages."""
    Manifest.read(folder, method)
    return BM25Retriever(folder / INSIDE, settings), PassageStore(folder / INSIDE)


class BM25Retriever:
    """A folder that `build` wrote, opened.

    Raises:
        UserError: the folder is not a whole BM25 index, or no Java can be used.
    """

    def __init__(self, folder: Path, settings: Settings = Settings()) -> None:
        self.folder = folder
        manifest = Manifest.read(self.folder, "bm25")
        start_java(settings.heap)
        from jnius import JavaException

        try:
            self._searcher = java_class("io.anserini.search.SimpleSearcher")(
                # absolute, because a JVM stays in the folder that it was started in
                str((self.folder / LUCENE).resolve())
            )
        except JavaException as e:
            raise UserError(
                f"{self.folder}: Lucene cannot open the index ({str(e).splitlines()[0]}): build it again"
            ) from None
        self._store = PassageStore(self.folder)
        self._searcher.set_bm25(manifest.settings["k1"], manifest.settings["b"])
        self._threads = settings.threads
        self._worker = SearchWorker(self._search_batch, repr(self))
        self.fingerprint = manifest.fingerprint
        self.passage_count = manifest.passages
        if not self._searcher.get_total_num_docs() == len(self._store) == manifest.passages:
            raise UserError(f"{self.folder}: the parts of the index do not fit together: build it again")

    def __repr__(self) -> str:
        return f"BM25 index {self.folder}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. Passages that share no word with a query are not found at all."""
        first, last = span(k, page)
        if first >= self.passage_count:
            return [[] for _ in queries]
        return [hits[first:last] for hits in await self._worker.search(queries, min(last, self.passage_count))]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await asyncio.to_thread(self._store.missing, ids)

    async def close(self) -> None:
        from jnius import detach

        self._worker.close(last=detach)
        self._searcher.close()
        self._store.close()

    def _search_batch(self, queries: list[str], depth: int) -> list[list[Hit]]:
        texts, keys = java_class("java.util.ArrayList")(), java_class("java.util.ArrayList")()
        for i, query in enumerate(queries):
            texts.add(query)
            keys.add(str(i))
        found = self._searcher.batch_search(texts, keys, depth, min(self._threads, len(queries)))
        return [
            [Hit(self._store[int(document.docid)], float(document.score)) for document in found.get(str(i))]
            for i in range(len(queries))
        ]


def open_index(folder: Path, settings: Settings) -> BM25Retriever:
    return BM25Retriever(folder, settings)


def _batches(store: PassageStore) -> Iterator[list[str]]:
    # Lucene orders equal scores by id as text, so the row numbers have a fixed width.
    rows = (json.dumps({"id": f"{row:010d}", "contents": indexed_text(passage)}) for row, passage in enumerate(store))
    while batch := list(islice(rows, BATCH)):
        yield batch


def _versions() -> dict[str, str]:
    anserini = anserini_jar().name.removeprefix("anserini-").removesuffix("-fatjar.jar")
    return {"pyserini": version("pyserini"), "anserini": anserini}

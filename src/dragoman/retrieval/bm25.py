"""BM25 over Lucene, through the anserini classes that pyserini ships.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); k1 = 0.9 and b = 0.4 are
anserini's, tuned for passages. English analysis: Porter stemmer, stop words removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, span
from dragoman.retrieval.java import anserini_jar, java_class, start_java
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.store import PassageStore, indexed_text, write_passages
from dragoman.retrieval.worker import SearchWorker

LUCENE = "lucene"
BATCH = 1000  # documents in one call into Java


def build_bm25(
    passages: Iterable[Passage],
    folder: Path | str,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    threads: int = 2,
    heap: str = "2g",
) -> Manifest:
    """Index the passages (title and text) into `folder`, replacing an index that is there.

    Lucene's documents bear the row of their passage as id, so that equal scores are ordered as the corpus is.

    Args:
        k1: how soon a repeated word stops counting, 0 or more.
        b: how much long passages are held back, from 0 to 1.
        threads: of Lucene.
        heap: of Java, when this call is the one that starts it.

    Raises:
        UserError: a setting is out of its range, no Java can be used, the corpus is empty or has a bad passage, or
            `folder` holds something else.
    """
    if k1 < 0 or not 0 <= b <= 1:
        raise UserError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, not k1 = {k1} and b = {b}")
    if threads < 1:
        raise UserError(f"threads is {threads}: Lucene needs at least one")
    start_java(heap)
    with building(Path(folder), "bm25") as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        indexer = java_class("io.anserini.index.SimpleIndexer")(str((work / LUCENE).resolve()), False, threads)
        try:
            for documents in _batches(store):
                if indexer.addRawDocuments(documents) != len(documents):
                    raise RuntimeError(f"{work}: Lucene did not take all documents")
        finally:
            indexer.close()
        manifest = Manifest("bm25", corpus, len(store), {"k1": float(k1), "b": float(b)}, _versions())
        manifest.write(work)
        store.close()
    return manifest


class BM25Retriever:
    """A folder that `build_bm25` wrote, opened.

    Args:
        threads: of Lucene, for the queries of one batch.
        heap: of Java, when this is what starts it.

    Raises:
        UserError: the folder is not a whole BM25 index, or no Java can be used.
    """

    def __init__(self, folder: Path | str, *, threads: int = 2, heap: str = "2g") -> None:
        self.folder = Path(folder)
        manifest = Manifest.read(self.folder, "bm25")
        start_java(heap)
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
        self._threads = threads
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


def _batches(store: PassageStore) -> Iterator[list[str]]:
    # Lucene orders equal scores by id as text, so the row numbers have a fixed width.
    rows = (json.dumps({"id": f"{row:010d}", "contents": indexed_text(passage)}) for row, passage in enumerate(store))
    while batch := list(islice(rows, BATCH)):
        yield batch


def _versions() -> dict[str, str]:
    anserini = anserini_jar().name.removeprefix("anserini-").removesuffix("-fatjar.jar")
    return {"pyserini": version("pyserini"), "anserini": anserini}

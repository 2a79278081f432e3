"""Lucene through the anserini classes that pyserini ships: what every index inside Lucene shares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.retrieval.base import Hit
from dragoman.retrieval.java import anserini_jar, java_class
from dragoman.retrieval.store import PassageStore
from dragoman.retrieval.worker import SearchWorker

LUCENE = "lucene"
BATCH = 1000  # documents in one call into Java


def write_index(work: Path, texts: Iterable[str], threads: int, *options: str) -> None:
    """Index the texts, in order, in a folder of `work`; their ids are the rows, so that equal scores are in their order.

    Args:
        options: of anserini's IndexCollection.
    """
    arguments = ["-collection", "JsonCollection", "-input", str(work.resolve()), "-threads", str(threads), *options]
    indexer = java_class("io.anserini.index.SimpleIndexer")([*arguments, "-index", str((work / LUCENE).resolve())])
    try:
        for documents in _batches(texts):
            if indexer.addRawDocuments(documents) != len(documents):
                raise RuntimeError(f"{work}: Lucene did not take all documents")
    finally:
        indexer.close()


def open_searcher(kind: str, folder: Path) -> Any:
    """Anserini's searcher of that name over what `write_index` wrote in `folder`.

    Raises:
        UserError: the index is damaged.
    """
    from jnius import JavaException

    try:
        # absolute, because a JVM stays in the folder that it was started in
        return java_class(f"io.anserini.search.{kind}")(str((folder / LUCENE).resolve()))
    except JavaException as e:
        raise UserError(f"{folder}: Lucene cannot open the index ({str(e).splitlines()[0]}): build it again") from None


def search(searcher: Any, store: PassageStore, queries: Sequence[Any], depth: int, threads: int) -> list[list[Hit]]:
    """The best `depth` passages for each query, which is a text or what `weighted` made."""
    asked, keys = java_class("java.util.ArrayList")(), java_class("java.util.ArrayList")()
    for i, query in enumerate(queries):
        asked.add(query)
        keys.add(str(i))
    found = searcher.batch_search(asked, keys, depth, min(threads, len(queries)))
    return [
        [Hit(store[int(document.docid)], float(document.score)) for document in found.get(str(i))]
        for i in range(len(queries))
    ]


def weighted(impacts: Mapping[int, int]) -> Any:
    """Terms with their impacts, as a query of `SimpleImpactSearcher`."""
    query, integer = java_class("java.util.HashMap")(), java_class("java.lang.Integer")
    for term, impact in impacts.items():
        query.put(str(term), integer(impact))
    return query


def close(worker: SearchWorker, searcher: Any) -> None:
    """End the thread that searches, which Java has to let go first, and then the searcher."""
    from jnius import detach

    worker.close(last=detach)
    searcher.close()


def versions() -> dict[str, str]:
    anserini = anserini_jar().name.removeprefix("anserini-").removesuffix("-fatjar.jar")
    return {"pyserini": version("pyserini"), "anserini": anserini}


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    # Lucene orders equal scores by id as text, so the row numbers have a fixed width.
    rows = (json.dumps({"id": f"{row:010d}", "contents": text}) for row, text in enumerate(texts))
    while batch := list(islice(rows, BATCH)):
        yield batch

"""BM25 over Lucene, through the anserini classes that pyserini ships.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); k1 = 0.9 and b = 0.4 are
anserini's, tuned for passages. English analysis: Porter stemmer, stop words removed.

With `rm3` a query is widened by words of the passages that it finds, weighed by how likely these passages make them: RM3 of
Abdul-Jaleel et al., "UMass at TREC 2004". It learns nothing, and is called bm25+rm3 wherever it is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from dragoman.core.settings import Section
from dragoman.core.types import Passage
from dragoman.retrieval import lucene
from dragoman.retrieval.base import Hit
from dragoman.retrieval.folder import FolderRetriever
from dragoman.retrieval.java import start_java
from dragoman.retrieval.manifest import Manifest, building
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.store import PassageStore, indexed_text, write_passages

INSIDE = "bm25"  # the folder of this index inside one of another method


class Settings(Section):
    k1: float = Field(0.9, ge=0)
    """How soon a repeated word stops counting."""
    b: float = Field(0.4, ge=0, le=1)
    """How much long passages are held back."""
    rm3: bool = False
    """Search twice: the second time also with words of what the first search finds. Needs a larger index."""
    rm3_passages: int = Field(10, ge=1)
    """Passages of the first search that words are taken from."""
    rm3_words: int = Field(10, ge=1)
    """Words that are taken."""
    rm3_original: float = Field(0.5, ge=0, le=1)
    """The weight of the query itself; the words that are taken have the rest."""
    threads: int = Field(2, ge=1)
    """Of Lucene, for the passages that are indexed and for the queries of one batch."""
    heap: str = Field("2g", pattern=r"^[1-9]\d*[kmgKMG]$")
    """The memory of Java, as `java -Xmx` takes it, where this is what starts it."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    """See `Method.build`. Title and text are indexed."""
    start_java(settings.heap)
    with building(folder, "bm25") as work:
        corpus = write_passages(passages, work)
        store = PassageStore(work)
        kept: dict[str, Any] = {"k1": float(settings.k1), "b": float(settings.b)}
        if settings.rm3:
            kept["rm3"] = [settings.rm3_words, settings.rm3_passages, float(settings.rm3_original)]
        options = ["-storeDocvectors"] if settings.rm3 else []
        lucene.write_index(work, map(indexed_text, store), settings.threads, *options)
        manifest = Manifest("bm25", corpus, len(store), kept, lucene.versions())
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


class BM25Retriever(FolderRetriever):
    """A folder that `build` wrote, opened. Passages that share no word with a query are not found at all.

    Raises:
        UserError: the folder is not a whole BM25 index, or no Java can be used.
    """

    def __init__(self, folder: Path, settings: Settings = Settings()) -> None:
        manifest = Manifest.read(folder, "bm25")
        start_java(settings.heap)
        self._searcher = lucene.open_searcher("SimpleSearcher", folder)
        self._searcher.set_bm25(manifest.settings["k1"], manifest.settings["b"])
        if rm3 := manifest.settings.get("rm3"):
            words, self.least, original = rm3  # passages of the first search
            self._searcher.set_rm3(None, words, self.least, original, False, True)
        self._name, self._threads = manifest.name, settings.threads
        super().__init__(folder, manifest, self._searcher.get_total_num_docs())

    def __repr__(self) -> str:
        return f"{self._name.upper()} index {self.folder}"

    async def close(self) -> None:
        lucene.close(self._worker, self._searcher)
        self._store.close()

    def _search_batch(self, queries: list[str], depth: int) -> list[list[Hit]]:
        return lucene.search(self._searcher, self._store, queries, depth, self._threads)


def open_index(folder: Path, settings: Settings) -> BM25Retriever:
    return BM25Retriever(folder, settings)

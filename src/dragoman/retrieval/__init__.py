"""Finding passages: build an index, open it (or a server's) as a `Retriever`, and check that it works.

Java, torch and FAISS are imported by the methods that need them, when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever
from dragoman.retrieval.health import check_health
from dragoman.retrieval.manifest import BUNDLED_ENCODER, METHODS, POOL, RRF_K, SEARCH, Manifest, building

__all__ = ["Hit", "Manifest", "Method", "Retriever", "build_index", "check_health", "open_retriever"]

Method = Literal["bm25", "dense", "hybrid", "graph", "ideal"]


def build_index(
    passages: Iterable[Passage],
    folder: Path | str,
    *,
    method: Method = "bm25",
    k1: float = 0.9,
    b: float = 0.4,
    threads: int = 2,
    heap: str = "2g",
    encoder: str = BUNDLED_ENCODER,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    batch_size: int = 32,
    device: str | None = None,
    rrf_k: float = RRF_K,
    pool: int = POOL,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Build an index of the passages in `folder`, replacing one that is there. It is whole or it is not there.

    Args:
        method: "bm25", "dense", "hybrid" for both, fused, "graph" for a corpus of entities, or "ideal", which finds the gold
            passages of each question and no others.
        k1, b, threads, heap: of `build_bm25`.
        encoder, query_prefix, passage_prefix, batch_size, device: of `build_dense`.
        rrf_k, pool: of `HybridRetriever`.
        progress: called with (passages embedded, passages in all).

    Raises:
        UserError: `method` is unknown, a setting is out of its range, the corpus is empty or has a bad passage, or
            `folder` holds something that is not an index.
    """
    if method not in METHODS:
        raise UserError(f"{method!r} is not a retrieval method: choose one of {', '.join(METHODS)}")

    def lexical(passages: Iterable[Passage], folder: Path) -> Manifest:
        from dragoman.retrieval.bm25 import build_bm25

        return build_bm25(passages, folder, k1=k1, b=b, threads=threads, heap=heap)

    def dense(passages: Iterable[Passage], folder: Path) -> Manifest:
        from dragoman.retrieval.dense import build_dense

        return build_dense(
            passages,
            folder,
            encoder=encoder,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )

    folder = Path(folder)
    if method == "bm25":
        return lexical(passages, folder)
    if method == "dense":
        return dense(passages, folder)
    if method in ("graph", "ideal"):  # they search by words; what they make of it is theirs when they are opened
        with building(folder, method) as work:
            inner = lexical(passages, work / SEARCH)
            manifest = Manifest(method, inner.corpus_sha256, inner.passages, {})
            manifest.write(work)
        return manifest

    from dragoman.retrieval.hybrid import check_fusion
    from dragoman.retrieval.store import PassageStore

    check_fusion(rrf_k, pool)
    with building(folder, "hybrid", resumable=True) as work:
        first = lexical(passages, work / "bm25")
        store = PassageStore(work / "bm25")  # the passages may have been a stream, which is now spent
        dense(store, work / "dense")
        store.close()
        manifest = Manifest("hybrid", first.corpus_sha256, first.passages, {"rrf_k": float(rrf_k), "pool": pool})
        manifest.write(work)
    return manifest


def open_retriever(target: Path | str, *, threads: int = 2, heap: str = "2g", device: str | None = None) -> Retriever:
    """The retriever of an index folder (its manifest says of which method) or of a server's http(s) address.

    Args:
        threads, heap: of Lucene and Java, where BM25 is part of it.
        device: of the encoder, where there is one.

    Raises:
        UserError: there is no index there, it is damaged, or no server answers.
    """
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        from dragoman.retrieval.http.client import HttpRetriever

        try:
            return HttpRetriever(target)
        except RetrieverFault as e:
            raise UserError(f"no retriever to use: {e}") from e
    folder = Path(target)
    manifest = Manifest.read(folder)
    if manifest.method == "bm25":
        from dragoman.retrieval.bm25 import BM25Retriever

        return BM25Retriever(folder, threads=threads, heap=heap)
    if manifest.method == "dense":
        from dragoman.retrieval.dense import DenseRetriever

        return DenseRetriever(folder, device=device)
    if manifest.method == "graph":
        from dragoman.retrieval.graph import open_graph

        return open_graph(folder, threads=threads, heap=heap)
    if manifest.method == "ideal":
        from dragoman.retrieval.ideal import open_ideal

        return open_ideal(folder, threads=threads, heap=heap)
    from dragoman.retrieval.hybrid import HybridRetriever

    parts = [open_retriever(folder / part, threads=threads, heap=heap, device=device) for part in ("bm25", "dense")]
    return HybridRetriever(parts, **manifest.settings)

"""Finding passages: build an index, open it (or a server's) as a `Retriever`, and check that it works.

Java, torch and FAISS are imported by the methods that need them, when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval import methods
from dragoman.retrieval.base import Hit, Retriever
from dragoman.retrieval.health import check_health
from dragoman.retrieval.manifest import Manifest
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.rerank import reranked
from dragoman.retrieval.settings import IndexParams

__all__ = ["Hit", "IndexParams", "Manifest", "Retriever", "build_index", "check_health", "open_retriever"]


def build_index(
    passages: Iterable[Passage],
    folder: Path | str,
    params: IndexParams | None = None,
    *,
    progress: Progress | None = None,
) -> Manifest:
    """Build an index of the passages in `folder`, replacing one that is there. It is whole or it is not there.

    Raises:
        UserError: the corpus is empty or has a bad passage, or `folder` holds something that is not an index.
    """
    params = params or IndexParams()
    return methods.load(params.method).build(passages, Path(folder), params.settings(), progress)


def open_retriever(target: Path | str, params: IndexParams | None = None) -> Retriever:
    """The retriever of an index folder (its manifest says of which method) or of a server's http(s) address.

    An address may begin with what the server speaks, as in `searxng+https://...`; see `http/foreign.py`.

    Args:
        params: settings of the machine (threads, heap, device) for an index, of the server, and of reranking; all by
            default otherwise, without reranking.

    Raises:
        UserError: there is no index there, it is damaged, no server answers, or there is no such cross-encoder.
    """
    params = params or IndexParams()
    return reranked(_open(target, params), params.rerank)


def _open(target: Path | str, params: IndexParams) -> Retriever:
    if isinstance(target, str) and target.partition("://")[0].endswith(("http", "https")) and "://" in target:
        from dragoman.retrieval.http.foreign import open_server

        try:
            return open_server(target, params.server)
        except RetrieverFault as e:
            raise UserError(f"no retriever to use: {e}") from e
    folder = Path(target)
    name = Manifest.read(folder).method
    return methods.load(name).open_index(folder, params.with_method(name).settings())

"""Finding passages: build an index, open it (or a server's) as a `Retriever`, and check that it works.

Java, torch and FAISS are imported by the methods that need them, when they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from dragoman.core.types import Passage
from dragoman.retrieval import methods
from dragoman.retrieval.base import Hit, Retriever
from dragoman.retrieval.health import check_health
from dragoman.retrieval.manifest import Manifest
from dragoman.retrieval.methods import Progress
from dragoman.retrieval.rerank import RerankParams, reranked
from dragoman.retrieval.settings import IndexParams

log = logging.getLogger(__name__)

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


def open_retriever(target: Path | str, params: IndexParams | None = None, *, again: bool = False) -> Retriever:
    """The retriever of an index folder (its manifest says of which method) or of a server's http(s) address.

    An address may begin with what the server speaks, as in `searxng+https://...`; see `http/foreign.py`. Where settings are
    given, a warning tells of an index that has another method, encoder or server than they name.

    Args:
        params: settings of the machine (threads, heap, device) for an index, of the server, and of reranking; all by
            default otherwise, without reranking.
        again: it was open before, so that the warning was given.

    Raises:
        UserError: there is no index there, it is damaged, no server answers, or there is no such cross-encoder.
    """
    return reranked(_open(target, params, again), params.rerank if params else RerankParams())


def _open(target: Path | str, params: IndexParams | None, again: bool) -> Retriever:
    machine = params or IndexParams()
    if isinstance(target, str) and target.partition("://")[0].endswith(("http", "https")) and "://" in target:
        from dragoman.retrieval.http.foreign import open_server

        return open_server(target, machine.server)
    folder = Path(target)
    built = Manifest.read(folder)
    if params and not again and (difference := _difference(folder, built, params)):
        log.warning("%s: searched as it was built, %s; to change that, build it again", folder, difference)
    return methods.load(built.method).open_index(folder, machine.with_method(built.method).settings())


def _difference(folder: Path, built: Manifest, params: IndexParams) -> str:
    """In what an index is not what the settings would build, by its method, encoder or server; empty for nothing."""
    settings = params.settings()
    method = "bm25" if params.method == "sparse" and not settings.checkpoint else params.method
    if built.method != method:
        return f"by method {built.method}, while index.method is {params.method}"
    kept = Manifest.read(folder / "dense").settings if method == "hybrid" else built.settings
    for key in ("encoder", "checkpoint", "url"):
        if key in kept and kept[key] != getattr(settings, key):
            return f"with {key} {kept[key]}, while index.{key} is {getattr(settings, key) or 'not set'}"
    return ""

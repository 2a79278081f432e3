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

    Args:
        params: settings of the machine (threads, heap, device) for an index of this method; the method's defaults
            otherwise.

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
    name = Manifest.read(folder).method
    method = methods.load(name)
    return method.open_index(folder, params.settings() if params and params.method == name else method.Settings())

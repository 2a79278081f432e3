"""What finds passages: one protocol for every retriever, local or behind a URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage with the retriever's own score (higher is better; not comparable between retrievers)."""

    passage: Passage
    score: float


class Retriever(Protocol):
    @property
    def fingerprint(self) -> str:
        """Changes whenever an equal query could give another result: the corpus, the method and its settings."""
        ...

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """The `page`-th group (from 0) of `k` passages for each query, best first; short or empty at the end.

        Raises:
            UserError: k < 1 or page < 0.
            RetrieverFault: the index or its server failed, retries included.
        """
        ...

    async def close(self) -> None: ...


def changes_unseen(retriever: Retriever) -> bool:
    """Whether what it searches may change while its fingerprint stays, as it says by an attribute of that name."""
    return getattr(retriever, "changes_unseen", False)


@runtime_checkable
class PerQuestion(Protocol):
    """A retriever in which not every question finds the same."""

    def of(self, question: Question) -> Retriever:
        """What `question` can search. It need not be closed.

        Raises:
            UserError: there is nothing for it.
        """
        ...


@runtime_checkable
class Lookup(Protocol):
    """A retriever that can say which passages it has."""

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that no passage has, in their order.

        Raises:
            RetrieverFault: the server failed, retries included.
        """
        ...


async def missing(retriever: Retriever, ids: Sequence[str]) -> list[str]:
    """The same of any retriever. One that cannot say is taken at its word: then none is missing."""
    return await retriever.missing(ids) if isinstance(retriever, Lookup) else []


def span(k: int, page: int) -> tuple[int, int]:
    """The ranks, from 0, that the `page`-th group of `k` passages covers: first, and one past the last.

    Raises:
        UserError: k < 1 or page < 0.
    """
    if k < 1:
        raise UserError(f"k is {k}: ask for at least one passage")
    if page < 0:
        raise UserError(f"page is {page}: pages count from 0")
    return page * k, (page + 1) * k


def well_formed(query: str) -> str:
    """The query as Unicode that can be encoded: a model or a JSON escape may leave half a surrogate pair in it."""
    return query.encode("utf-8", "replace").decode()

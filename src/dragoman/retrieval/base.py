"""What finds passages: one protocol for every retriever, local or behind a URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dragoman.types import Passage, Question


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage with the retriever's own score (higher is better; not comparable between retrievers)."""

    passage: Passage
    score: float


class Retriever(Protocol):
    fingerprint: str
    """Changes whenever an equal query could give another result: the corpus, the method and its settings."""

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """The `page`-th group (from 0) of `k` passages for each query, best first; short or empty at the end.

        Raises:
            UserError: k < 1 or page < 0.
            RetrieverFault: the index or its server failed, retries included.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class PerQuestion(Protocol):
    """A retriever in which not every question finds the same."""

    def of(self, question: Question) -> Retriever:
        """What `question` can search. It need not be closed.

        Raises:
            UserError: there is nothing for it.
        """
        ...

"""What MAPS has gathered for a question: the query pool with its chunks (eq. 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.text import words
from dragoman.core.types import Passage


@dataclass(frozen=True)
class Search:
    """One query of the pool, with the passages that no earlier query had found."""

    query: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class Pool:
    """Q_n and C_n, search by search."""

    searches: tuple[Search, ...] = ()

    @property
    def queries(self) -> tuple[str, ...]:
        """Q_n. The first is the question."""
        return tuple(search.query for search in self.searches)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """C_n, each passage once, in the order in which they were found."""
        return tuple(passage for search in self.searches for passage in search.passages)

    def has_asked(self, query: str) -> bool:
        """Whether the pool has a query of these words, capital letters aside."""
        return _plain(query) in map(_plain, self.queries)

    def extended(self, query: str, found: Sequence[Passage], most: int) -> Pool:
        """Eq. 9: with one more query and what it found, as far as the pool then has at most `most` passages."""
        known = {passage.id for passage in self.passages}
        new = {passage.id: passage for passage in found if passage.id not in known}
        return Pool((*self.searches, Search(query, tuple(new.values())[: most - len(known)])))


def _plain(query: str) -> str:
    return " ".join(words(query)).casefold()

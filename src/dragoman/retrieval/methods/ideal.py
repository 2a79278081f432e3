"""Ideal retrieval: for each question only its gold passages can be found, as in Hotpot-Kimi (Mujica-MyGO, section 4.1).

Retrieval is then no reason for a wrong answer, and what is left is planning and reading. The passages are not handed over:
a system has to search, and gets them in the order in which its query finds them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.corpus.chunking import with_wholes
from dragoman.retrieval.base import Hit, Retriever, span
from dragoman.retrieval.manifest import Manifest, digest
from dragoman.retrieval.methods import Progress, bm25
from dragoman.retrieval.store import PassageStore

DEPTH = 100  # how deep a gold passage is looked for


class Settings(bm25.Settings):
    """Of the search by words."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    return bm25.build_inside("ideal", passages, folder, settings)


def open_index(folder: Path, settings: Settings = Settings()) -> IdealRetriever:
    return IdealRetriever(*bm25.open_inside("ideal", folder, settings))


class IdealRetriever:
    """Searches all passages like any retriever, and for a question (`of`) its gold passages alone.

    Args:
        search: finds passages of `passages`; closed with this retriever, as they are.
    """

    def __init__(self, search: Retriever, passages: PassageStore) -> None:
        self._search, self._passages = search, passages
        self._rows_of: dict[str, list[int]] = defaultdict(list)  # of a passage that was cut, those of its chunks
        for row, passage in enumerate(passages):
            for id in with_wholes([passage.id]):
                self._rows_of[id].append(row)
        self.fingerprint = f"ideal-{digest({'search': search.fingerprint})}"
        self.passage_count = len(passages)

    def __repr__(self) -> str:
        return f"ideal retrieval of {self.passage_count} passages over {self._search!r}"

    def of(self, question: Question) -> Retriever:
        """What finds the gold passages of `question`, and nothing else.

        Raises:
            UserError: none are known, or one is not in the index.
        """
        if not question.supporting_ids:
            raise UserError(f"question {question.id}: ideal retrieval needs its supporting_ids, and it has none")
        rows = {id: self._rows_of.get(id, ()) for id in dict.fromkeys(question.supporting_ids)}
        if missing := [id for id, found in rows.items() if not found]:
            raise UserError(f"question {question.id}: its gold passage {missing[0]!r} is not in {self!r}")
        gold = [self._passages[row] for found in rows.values() for row in found]
        return _Gold(self._search, gold, self.fingerprint)

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. This finds all passages, for whoever has no question in mind."""
        return await self._search.search(queries, k, page)

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return [id for id in ids if id not in self._rows_of]

    async def close(self) -> None:
        await self._search.close()
        self._passages.close()


class _Gold:
    """The passages of one question: those among the best of a search in its order, then the others."""

    def __init__(self, search: Retriever, gold: list[Passage], fingerprint: str) -> None:
        self._search, self._gold, self.fingerprint = search, gold, fingerprint

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        first, last = span(k, page)
        found = await self._search.search(queries, DEPTH)
        return [self._only(hits)[first:last] for hits in found]

    async def close(self) -> None:
        pass  # the search is everybody's

    def _only(self, hits: list[Hit]) -> list[Hit]:
        gold = {passage.id for passage in self._gold}
        ranked = [hit for hit in hits if hit.passage.id in gold]
        least = min((hit.score for hit in ranked), default=0.0)
        seen = {hit.passage.id for hit in ranked}
        return ranked + [Hit(passage, least) for passage in self._gold if passage.id not in seen]

"""Finding entities of a knowledge graph: those that a query names, then what a search finds.

The corpus is one of entities, whose titles are their names (`dragoman.corpus.triples` makes it out of triples). Linking is
by exact name, since a search mostly puts an entity's neighbours, which name it too, before the entity itself. A query that
names no entity of the graph is a search like any other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever, span, well_formed
from dragoman.retrieval.manifest import Manifest, digest
from dragoman.retrieval.methods import Progress, bm25
from dragoman.retrieval.store import PassageStore


class Settings(bm25.Settings):
    """Of the search by words."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    return bm25.build_inside("graph", passages, folder, settings)


def open_index(folder: Path, settings: Settings = Settings()) -> GraphRetriever:
    return GraphRetriever(*bm25.open_inside("graph", folder, settings))


class GraphRetriever:
    """Puts the entities that a query names before what `search` finds for it.

    Names are compared without regard to case and punctuation. Where one name is part of another the longer one counts, and
    entities that share a name are found in the order of the corpus.

    Args:
        search: finds passages of `entities`; closed with this retriever, as they are.
    """

    def __init__(self, search: Retriever, entities: PassageStore) -> None:
        self._search, self._entities = search, entities
        self._rows: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, entity in enumerate(entities):
            if name := _words(entity.title):
                self._rows[name].append(row)
        self._longest = max(map(len, self._rows), default=0)
        self.fingerprint = f"graph-{digest({'search': search.fingerprint})}"
        self.passage_count = len(entities)

    def __repr__(self) -> str:
        return f"graph of {self.passage_count} entities over {self._search!r}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. Entities that are named have one score, above all others."""
        first, last = span(k, page)
        if first >= self.passage_count:
            return [[] for _ in queries]
        found = await self._search.search(queries, min(last, self.passage_count))
        return [self._link(query, hits)[first:last] for query, hits in zip(queries, found, strict=True)]

    async def close(self) -> None:
        await self._search.close()
        self._entities.close()

    def _link(self, query: str, hits: list[Hit]) -> list[Hit]:
        top = max((hit.score for hit in hits), default=0.0) + 1
        named = [Hit(self._entities[row], top) for row in self._named(query)]
        ids = {hit.passage.id for hit in named}
        return named + [hit for hit in hits if hit.passage.id not in ids]

    def _named(self, query: str) -> list[int]:
        """Rows of the entities that the query names, in the order in which it does."""
        words = _words(query)
        rows: dict[int, None] = {}
        start = 0
        while start < len(words):
            ends = range(min(start + self._longest, len(words)), start, -1)
            end = next((end for end in ends if words[start:end] in self._rows), None)
            if end is not None:
                rows |= dict.fromkeys(self._rows[words[start:end]])
            start = end or start + 1
        return list(rows)


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", well_formed(text).casefold()))

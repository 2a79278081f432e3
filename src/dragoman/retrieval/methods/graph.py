"""Finding triples of a knowledge graph: those of entities that a query names, then what a search finds.

The corpus is one of triples (`dragoman.corpus.triple_passages`). Linking is by exact name, since a search mostly puts an
entity's neighbours, which name it too, before the entity itself. A query has one of two forms:

- words, as for any retriever. The entities named in them take turns, each with its triples, the likeliest first.
- an entity, a tab and words (`triple_passages.about`): the triples of that entity alone, those that it heads before those that end in it.

A passage that is no triple is an entity's, whose name is its title.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from dragoman.core.types import Passage
from dragoman.corpus.triple_passages import SEPARATOR, ends, triple_of
from dragoman.retrieval.base import Hit, Retriever, span, well_formed
from dragoman.retrieval.manifest import MANIFEST, Manifest, digest
from dragoman.retrieval.methods import Progress, bm25
from dragoman.retrieval.store import PassageStore

DEPTH = 100  # how deep an entity's triples are looked for to put them in order; further ones keep that of the corpus


class Settings(bm25.Settings):
    """Of the search by words."""


def build(
    passages: Iterable[Passage], folder: Path, settings: Settings = Settings(), progress: Progress | None = None
) -> Manifest:
    return bm25.build_inside("graph", passages, folder, settings)


def open_index(folder: Path, settings: Settings = Settings()) -> GraphRetriever:
    return GraphRetriever(*bm25.open_inside("graph", folder, settings))


def holds_triples(target: Path | str) -> bool:
    """Whether this is the folder of an index of triples. One of text has entities too, by its titles, but its ids are of text."""
    folder = Path(target)
    if not (folder / MANIFEST).is_file() or Manifest.read(folder).method != "graph":
        return False
    passages = PassageStore(folder / bm25.INSIDE)
    try:
        return triple_of(passages[0]) is not None
    finally:
        passages.close()


class GraphRetriever:
    """Puts the triples of the entities that a query names before what `search` finds for it.

    Names are compared without regard to case and punctuation. Where one name is part of another the longer one counts.
    In running text only subjects are entities: `Male` and `1492` are values, and found with what they are values of.

    Args:
        search: finds passages of `triples`; closed with this retriever, as they are.
    """

    def __init__(self, search: Retriever, triples: PassageStore) -> None:
        self._search, self._triples = search, triples
        self._headed: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._ended: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._row: dict[str, int] = {}
        for row, passage in enumerate(triples):
            self._row[passage.id] = row
            for rows, end in zip((self._headed, self._ended), ends(passage), strict=False):
                if name := _words(end):
                    rows[name].append(row)
        self._longest = max(map(len, self._headed), default=0)
        self.fingerprint = f"graph-{digest({'search': search.fingerprint, 'of': 'triples'})}"
        self.passage_count = len(triples)

    def __repr__(self) -> str:
        return f"graph of {self.passage_count} triples over {self._search!r}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. What is found for the entities that are named has one score, above all others.

        A query about an entity that is not in the graph finds nothing.
        """
        first, last = span(k, page)
        if first >= self.passage_count:
            return [[] for _ in queries]
        found = await self._search.search(queries, min(max(last, DEPTH), self.passage_count))
        return [self._link(query, hits, last)[first:] for query, hits in zip(queries, found, strict=True)]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`."""
        return await asyncio.to_thread(self._triples.missing, ids)

    async def close(self) -> None:
        await self._search.close()
        self._triples.close()

    def _link(self, query: str, hits: list[Hit], most: int) -> list[Hit]:
        """The first `most` that are found, where `hits` are those of the search."""
        entity, alone, _ = query.partition(SEPARATOR)
        names = [_words(entity)] if alone else self._named(query)
        ranks = {self._row[hit.passage.id]: rank for rank, hit in enumerate(hits[:DEPTH])}  # of every page the same
        lists = [
            [row for rows in (self._headed, self._ended) for row in _ranked(rows.get(name, ()), ranks)]
            for name in names
        ]
        turns = dict.fromkeys(row for row in chain.from_iterable(zip_longest(*lists)) if row is not None)
        top = max((hit.score for hit in hits), default=0.0) + 1
        named = [Hit(self._triples[row], top) for row in islice(turns, most)]  # an entity may have very many
        others = [] if alone else [hit for hit in hits if self._row[hit.passage.id] not in turns]
        return [*named, *others][:most]

    def _named(self, query: str) -> list[tuple[str, ...]]:
        """The names of the entities in a query, in its order and each once."""
        words = _words(query)
        names: dict[tuple[str, ...], None] = {}
        start = 0
        while start < len(words):
            stops = range(min(start + self._longest, len(words)), start, -1)
            stop = next((stop for stop in stops if words[start:stop] in self._headed), None)
            if stop is not None:
                names[words[start:stop]] = None
            start = stop or start + 1
        return list(names)


def _ranked(rows: Sequence[int], ranks: dict[int, int]) -> list[int]:
    """In the order of the search, and then in that of the corpus."""
    return sorted(rows, key=lambda row: ranks.get(row, len(ranks)))


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", well_formed(text).casefold()))

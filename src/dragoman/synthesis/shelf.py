"""The passages that questions are written from: one at a time, or two that have something to do with each other."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Triple
from dragoman.corpus.chunking import whole_id

COMMON = 20  # a name in more passages than that relates nothing to anything
UNPOPULAR = 1 / 3  # of the passages, those whose subject is named elsewhere the least
_NAME = re.compile(r"\b[A-Z][\w’'-]+(?:\s+[A-Z][\w’'-]+)*")


def split_passages(passages: Sequence[Passage], shares: Mapping[str, float], seed: int) -> dict[str, list[Passage]]:
    """Passages by split, none in two, so that no split asks about what another has asked about. Shares add up to 1.

    Chunks of one text stay together, since neighbours may overlap, unless there are fewer texts than splits. Cutting a row of
    texts at the shares would then leave a split with little, where a long text lies across the cut: the longest go first.

    Raises:
        UserError: there are fewer passages than splits.
    """
    if len(passages) < len(shares):
        raise UserError(
            f"{len(passages)} passages cannot be shared out to {', '.join(shares)}: each asks about its own"
        )
    texts: dict[str, list[Passage]] = defaultdict(list)
    for passage in sorted(passages, key=lambda p: p.id):
        texts[whole_id(passage.id)].append(passage)
    shuffled = list(texts.values()) if len(texts) >= len(shares) else [[p] for own in texts.values() for p in own]
    random.Random(f"{seed} passages").shuffle(shuffled)
    if len(shuffled) < len(passages):
        return _dealt(shuffled, shares)
    splits, start, reached = {}, 0, 0.0
    for wanted, (split, share) in enumerate(shares.items(), start=1):
        reached += share
        left = len(shares) - wanted  # each of which needs a passage
        end = min(max(start + 1, round(reached * len(passages))), len(shuffled) - left)
        splits[split] = [passage for text in shuffled[start:end] for passage in text]
        start = end
    return splits


def _dealt(texts: Sequence[Sequence[Passage]], shares: Mapping[str, float]) -> dict[str, list[Passage]]:
    """Each text, from the longest on, to the split that lacks most passages; the last ones to those that have none."""
    total = sum(map(len, texts))
    splits: dict[str, list[Passage]] = {split: [] for split in shares}
    for left, text in zip(range(len(texts), 0, -1), sorted(texts, key=len, reverse=True), strict=True):
        empty = [split for split in splits if not splits[split]]
        waiting = empty if left == len(empty) else splits
        splits[max(waiting, key=lambda split: shares[split] * total - len(splits[split]))] += text
    return splits


class Shelf:
    """The passages of one split. Two are related when they share a name that few others have, or a triple links them."""

    def __init__(self, passages: Sequence[Passage], triples: Iterable[Triple] = ()) -> None:
        self.passages = {p.id: p for p in passages}
        named: dict[str, set[str]] = defaultdict(set)
        for passage in passages:
            for name in {passage.title, *_NAME.findall(passage.text)} - {""}:
                named[name].add(passage.id)
        by_title = {p.title: p.id for p in passages}
        self._related: dict[str, set[str]] = defaultdict(set)
        links = [{by_title[s], by_title[o]} for s, _, o in triples if s in by_title and o in by_title and s != o]
        for ids in [*(ids for ids in named.values() if len(ids) <= COMMON), *links]:
            for id in ids:
                self._related[id] |= ids - {id}
        self.ids = sorted(self.passages)
        self.linked = [id for id in self.ids if self._related[id]]
        fame = {id: len(named[self.passages[id].title]) for id in self.ids}
        self._obscure = set(sorted(self.ids, key=lambda id: (fame[id], id))[: max(1, round(UNPOPULAR * len(self.ids)))])

    def draw(self, rng: random.Random, *, count: int, unpopular: bool = False) -> tuple[Passage, ...]:
        """One passage, or two related ones; none when no two are."""
        ids = self.ids if count == 1 else self.linked
        if unpopular:
            ids = [id for id in ids if id in self._obscure] or ids
        if not ids:
            return ()
        first = rng.choice(ids)
        chosen = [first] if count == 1 else [first, rng.choice(sorted(self._related[first]))]
        return tuple(self.passages[id] for id in chosen)

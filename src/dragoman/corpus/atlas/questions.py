"""Draws questions from the atlas: gold passages, the path of facts, one answer, and no answer given away.

A question is asked only if every step of its path has one end, rivals counted (`facts.Atlas.end`). Every fact of the path must
stand in the passage of one of its two entities. When it takes several facts, no single passage may state them all.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.core.errors import UserError
from dragoman.core.text import has, key
from dragoman.core.types import Question, Triple
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import Atlas, Entity, settled_by_hand, triple
from dragoman.corpus.atlas.passages import Page
from dragoman.corpus.names import SPLITS, Split

Pattern = dict[str, Any]  # an entry of patterns.yaml

SHARES = {"single_hop": 25, "compositional": 25, "inference": 20, "comparison": 15, "bridge_comparison": 15}
"""Percent of the questions. A comparison names its answer, so a guess is right half of the time: it teaches less."""
YES_OR_NO = 0.04  # most questions answered with "yes", as a share of all; likewise "no"
SAME_ANSWER = 0.03  # most questions with any other one answer, as a share
SMALL_SPLIT = 0.12  # of the entities, at least so many go to each split: comparisons need something to compare
SHORTEST = 3  # letters of an answer
TIMES = 2  # most comparisons of one pattern that an entity is in


@dataclass(frozen=True, slots=True)
class Walk:
    """One way through the facts: from a start along the path of a pattern to its one end."""

    start: str
    nodes: tuple[str, ...]
    """What each step leads to; the last one is the end."""
    triples: tuple[Triple, ...]
    homes: tuple[str, ...]
    """For each fact, the id of the passage that is gold for it."""

    @property
    def end(self) -> str:
        return self.nodes[-1]


def make(
    atlas: Atlas, entities: Sequence[Entity], pages: Sequence[Page], counts: dict[str, int], seed: int
) -> dict[str, list[Question]]:
    """The questions of each split, so many as `counts` says, in random order.

    Raises:
        UserError: the corpus has too little to ask for so many questions.
    """
    maker = _Maker(atlas, entities, pages)
    split_of = split_clusters(entities, counts, seed)
    return {split: maker.draw(split, counts[split], split_of, seed) for split in SPLITS}


def split_clusters(entities: Iterable[Entity], counts: dict[str, int], seed: int) -> dict[str, Split]:
    """Cluster -> split, in proportion to the counts, for countries, shared currencies, elements and so on separately.

    A question goes where the cluster of its start goes, so what one split asks about no other split does: a country comes
    with its cities and with the currency and the language that only it has.
    """
    sizes = Counter(entity.cluster for entity in entities)
    wanted = {split: count for split in SPLITS if (count := counts[split])}
    floor = SMALL_SPLIT * sum(wanted.values())
    shares = {split: max(count, floor) for split, count in wanted.items()}
    rng = random.Random(f"{seed} splits")
    chosen: dict[str, Split] = {}
    for stratum in sorted({cluster.split("-")[0] for cluster in sizes}):
        clusters = sorted(cluster for cluster in sizes if cluster.split("-")[0] == stratum)
        rng.shuffle(clusters)
        filled = dict.fromkeys(shares, 0)
        for cluster in sorted(clusters, key=lambda c: -sizes[c]):  # the sort is stable: chance decides among equals
            chosen[cluster] = min(shares, key=lambda split: filled[split] / shares[split])
            filled[chosen[cluster]] += sizes[cluster]
    return chosen


class _Maker:
    def __init__(self, atlas: Atlas, entities: Sequence[Entity], pages: Sequence[Page]) -> None:
        self.atlas = atlas
        self.entities = entities
        self.stated: dict[Triple, set[str]] = defaultdict(set)
        """Fact -> ids of the passages that state it."""
        for page in pages:
            for fact in page.stated:
                self.stated[fact].add(page.passage.id)

        self.walks: list[tuple[str, Pattern, list[Walk]]] = [
            (kind, pattern, self._walks(pattern))
            for kind, patterns in settled_by_hand("patterns.yaml").items()
            for pattern in patterns
        ]

    def draw(self, split: str, count: int, split_of: Mapping[str, str], seed: int) -> list[Question]:
        pools: dict[str, list[Iterator[Question]]] = defaultdict(list)
        for place, (kind, pattern, walks) in enumerate(self.walks):
            rng = random.Random(f"{seed} {split} {place}")
            own = [walk for walk in walks if split_of.get(self._cluster(walk, pattern)) == split]
            rng.shuffle(own)
            candidates = self._chains if "ask" in pattern else self._contests if "more" in pattern else self._matches
            pools[kind].append(candidates(kind, pattern, own, rng))
        chosen = _pick(pools, count)
        if len(chosen) < count:
            raise UserError(
                f"the atlas has only {len(chosen)} different questions for {split}, not {count}: ask for fewer questions, or "
                "for more passages"
            )
        random.Random(f"{seed} {split} order").shuffle(chosen)
        return [replace(question, id=f"atlas-{split}-{n:04d}") for n, question in enumerate(chosen, start=1)]

    def _walks(self, pattern: Pattern) -> list[Walk]:
        path, start = pattern["path"], pattern["start"]
        if start == "literal":
            starts = sorted({t[2] for t in self.stated if t[1] == path[0][1:]})
        else:
            capital = path[0] == "<" + f.CAPITAL
            starts = [e.name for e in self.entities if e.kind == start and (e.clear or capital)]
        return [walk for name in starts if (walk := self._walk(name, path))]

    def _walk(self, start: str, path: Sequence[str]) -> Walk | None:
        nodes, triples, homes = [start], [], []
        for step in path:
            end = self.atlas.end(nodes[-1], step, but=nodes)
            if end is None:
                return None
            fact = triple(nodes[-1], step, end)
            home = next((p for p in (self._page(nodes[-1]), self._page(end)) if p in self.stated.get(fact, ())), None)
            if home is None:
                return None
            nodes.append(end)
            triples.append(fact)
            homes.append(home)
        if len(triples) > 1 and set.intersection(*(self.stated[fact] for fact in triples)):
            return None
        return Walk(start, tuple(nodes[1:]), tuple(triples), tuple(homes))

    def _page(self, node: str) -> str | None:
        entity = self.atlas.entities.get(node)
        return entity.id if entity else None

    def _cluster(self, walk: Walk, pattern: Pattern) -> str:
        """That of the start; for a literal, that of the first entity behind it."""
        nodes = walk.nodes if pattern["start"] == "literal" else (walk.start,)
        return self.atlas.entities[nodes[0]].cluster

    def _chains(self, kind: str, pattern: Pattern, walks: list[Walk], rng: random.Random) -> Iterator[Question]:
        for walk in walks:
            answers = self.atlas.names(walk.end, pattern["path"][-1].removeprefix("<"))
            ask = rng.choice(pattern["ask"])
            texts = [ask.format(mention) for mention in self._mentions(walk.start, pattern)]
            given_away = (*answers, *walk.nodes)
            texts = [_sentence(text) for text in texts if not any(has(text, name) for name in given_away)]
            if texts and len(key(answers[0])) >= SHORTEST:
                yield _question(kind, rng.choice(texts), answers, [walk])

    def _mentions(self, start: str, pattern: Pattern) -> list[str]:
        """What the start may be called in a question. A currency goes by its other names too."""
        entity = self.atlas.entities.get(start)
        if entity is None or pattern["start"] == "literal":
            return [start]
        others = [f"the {alias}" for alias in entity.aliases if alias == f.fold(alias)]
        return [entity.label, *(others if entity.kind == "currency" else ())]

    def _contests(self, kind: str, pattern: Pattern, walks: list[Walk], rng: random.Random) -> Iterator[Question]:
        uses: Counter[str] = Counter()
        for one, other in _pairs(walks, rng):
            if max(uses[one.start], uses[other.start]) >= TIMES or one.nodes[:-1] == other.nodes[:-1] != ():
                continue
            low, high = sorted((one, other), key=lambda walk: number(walk.end))
            if not _apart(number(low.end), number(high.end), pattern):
                continue
            uses.update((one.start, other.start))
            more = rng.random() < 0.5
            text = rng.choice(pattern["more" if more else "less"]).format(self._label(one), self._label(other))
            winner = self.atlas.entities[(high if more else low).start]
            yield _question(kind, _sentence(text), (winner.name, *winner.aliases), [one, other])

    def _matches(self, kind: str, pattern: Pattern, walks: list[Walk], rng: random.Random) -> Iterator[Question]:
        """As many with yes as with no, in turns."""
        uses: Counter[str] = Counter()
        wanted = rng.random() < 0.5
        for one, other in _pairs(walks, rng):
            if max(uses[one.start], uses[other.start]) >= TIMES or one.nodes[:-1] == other.nodes[:-1] != ():
                continue
            if (one.end == other.end) == wanted:
                wanted = not wanted
                uses.update((one.start, other.start))
                text = rng.choice(pattern["same"]).format(self._label(one), self._label(other))
                yield _question(kind, _sentence(text), ("no" if wanted else "yes",), [one, other])

    def _label(self, walk: Walk) -> str:
        return self.atlas.entities[walk.start].label


def _pairs(walks: list[Walk], rng: random.Random) -> Iterable[tuple[Walk, Walk]]:
    """Pairs of different walks by chance; more than are needed, far fewer than there are."""
    for _ in range(10 * len(walks) if len(walks) > 1 else 0):
        one, other = rng.sample(walks, 2)
        yield one, other


def _apart(low: float, high: float, pattern: Pattern) -> bool:
    if "factor" in pattern:
        return high >= low * float(pattern["factor"])
    return high - low >= float(pattern["apart"])


def _question(kind: str, text: str, answers: Sequence[str], walks: Sequence[Walk]) -> Question:
    homes = dict.fromkeys(home for walk in walks for home in walk.homes)
    triples = tuple(fact for walk in walks for fact in walk.triples)
    usable = tuple(answer for answer in answers if len(key(answer)) >= SHORTEST) or tuple(answers)
    return Question("", text, usable, kind, tuple(homes), triples)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def number(text: str) -> float:
    """The value of a literal: `754,000`, `-259 °C`, `1898`; degrees south are negative."""
    value = float(text.split()[0].replace(",", "").rstrip("°"))
    return -value if text.endswith("S") else value


def _pick(pools: dict[str, list[Iterator[Question]]], count: int) -> list[Question]:
    """So many questions in the shares of their types, from the patterns of a type in turns, no answer too often.

    What one type cannot fill falls to the others.
    """
    answers: Counter[str] = Counter()
    texts: set[str] = set()
    chosen: list[Question] = []

    def usable(question: Question) -> bool:
        answer = question.answers[0]
        most = max(1, YES_OR_NO * count) if answer in ("yes", "no") else max(2, SAME_ANSWER * count)
        return question.question not in texts and answers[answer] < most

    for fill in (False, True):  # first every type its share, then whatever is left
        for kind, share in SHARES.items():
            wanted = count if fill else min(count, len(chosen) + round(count * share / 100))
            while len(chosen) < wanted and pools[kind]:
                for pool in list(pools[kind]):
                    question = next(filter(usable, pool), None)
                    if question is None:
                        pools[kind].remove(pool)
                    elif len(chosen) < wanted:
                        texts.add(question.question)
                        answers[question.answers[0]] += 1
                        chosen.append(question)
    return chosen

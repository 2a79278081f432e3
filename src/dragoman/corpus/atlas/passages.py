"""Turns the atlas into passages, one per entity, worded by chance under a seed.

A passage leaves out some of what is known of its entity and speaks of others too, as encyclopedias do: the capital of a
country may stand in the capital's passage only, and a currency's passage names the money of the neighbours. So a question
may need a second search, and a search finds passages that look right and are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Triple
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import Atlas, Entity
from dragoman.corpus.atlas.sentences import WRITERS, Writer

LONGEST = 110  # words; sentences beyond are left out
SMALLEST = 50  # passages: below this there is too little to ask about
CITIES_NEARBY = 3  # of each country, in a small atlas


@dataclass(frozen=True, slots=True)
class Page:
    """A passage, and the facts that it states."""

    passage: Passage
    stated: frozenset[Triple]


def render(atlas: Atlas, entities: Sequence[Entity], seed: int) -> list[Page]:
    """One page for each entity. Its wording depends on the seed and on the entity alone."""
    return [_page(atlas, entity, random.Random(f"{seed} {entity.id}")) for entity in entities]


def _page(atlas: Atlas, entity: Entity, rng: random.Random) -> Page:
    """The opening; then what else is said of the entity, shuffled; then what is said of others, shuffled."""
    writer = Writer(atlas, entity, rng)
    WRITERS[entity.kind](writer)
    opening, *own = writer.own
    rng.shuffle(own)
    rng.shuffle(writer.context)
    kept, words = [], 0
    for sentence in (opening, *own, *writer.context):
        words += len(sentence.text.split())
        if words > LONGEST:
            break
        kept.append(sentence)
    text = " ".join(sentence.text for sentence in kept)
    return Page(Passage(entity.id, entity.title, text), frozenset(fact for sentence in kept for fact in sentence.facts))


def choose(atlas: Atlas, count: int, seed: int) -> list[Entity]:
    """Which entities get a passage: all but cities, if there is room, then cities, the best-known of each country first.

    With less room, whole neighbourhoods are drawn by chance, so that questions of several hops remain: a country with its
    capital, currency, languages, region and more cities; an element with its discoverers and their other elements.

    Raises:
        UserError: the atlas cannot have so few or so many passages.
    """
    cities = atlas.of_kind("city")
    capitals = [c for c in cities if atlas.ends(c.name, "<" + f.CAPITAL)]
    base = [e for e in atlas.entities.values() if e.kind != "city"] + capitals
    most = len(base) + len(cities) - len(capitals)
    if not SMALLEST <= count <= most:
        raise UserError(f"passages: the atlas can have {SMALLEST} to {most}, not {count}")
    if count >= len(base):
        others = [c for c in cities if c not in capitals]
        chosen = {e.name for e in base + others[: count - len(base)]}
    else:
        chosen = set(_draw(atlas, count, random.Random(f"{seed} choose")))
    return [e for e in atlas.entities.values() if e.name in chosen]


def _draw(atlas: Atlas, count: int, rng: random.Random) -> list[str]:
    """Neighbourhoods, two of a country for one of an element, until there are `count` entities."""
    countries = [e.name for e in atlas.of_kind("country")]
    elements = [e.name for e in atlas.of_kind("element")]
    rng.shuffle(countries)
    rng.shuffle(elements)
    chosen: dict[str, None] = {}  # a set that keeps the order
    while len(chosen) < count:
        for name in [countries.pop() for _ in range(min(2, len(countries)))]:
            for step in (f.CAPITAL, f.CURRENCY, f.LANGUAGE, f.REGION):
                chosen.update(dict.fromkeys([name, *atlas.ends(name, step)]))
            chosen.update(dict.fromkeys(atlas.ends(name, "<" + f.COUNTRY)[:CITIES_NEARBY]))
        for name in [elements.pop() for _ in range(min(1, len(elements)))]:
            people = atlas.ends(name, f.DISCOVERER)
            found = [e for person in people for e in atlas.ends(person, "<" + f.DISCOVERER)]
            chosen.update(dict.fromkeys([name, *people, *found]))
    return list(chosen)[:count]

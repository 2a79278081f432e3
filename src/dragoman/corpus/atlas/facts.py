"""The facts of the atlas: entities, and (subject, relation, object) triples with the source of each.

`gather` reads the three packages through `geography` and `chemistry`. A fact is asserted when two sources
agree on it, or when it comes from the one source designated for its relation. `geography.yaml` and `chemistry.yaml` settle
others. What one source says alone, and may be true, is kept as a *rival*. A rival is never asserted, but a question that has
one answer without it is ambiguous with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from dragoman.core.text import fold
from dragoman.core.types import Triple

Kind = Literal["country", "city", "currency", "language", "region", "element", "person"]

# Relations, in the words that stand in the triples. Those of `LINKS` lead to another entity, the others to a literal.
CAPITAL, COUNTRY, CURRENCY, LANGUAGE = "capital", "country", "currency", "official language"
CONTINENT, REGION, BORDERS = "continent", "region", "borders"
DEMONYM, CALLING_CODE, DOMAIN = "demonym", "calling code", "internet domain"
AREA, POPULATION = "area in km²", "population"
LATITUDE, LONGITUDE, STATE, TIME_ZONE, POSITION = "latitude", "longitude", "US state", "time zone", "position"
ISO_CODE, ALIAS = "ISO code", "also called"
SYMBOL, NUMBER, PERIOD, SERIES, NEXT = "symbol", "atomic number", "period", "chemical series", "followed by"
DISCOVERER, YEAR, PLACE, KNOWN_SINCE = "discovered by", "year of discovery", "discovered in", "known since"
NAMED_AFTER, NAME_MEANS, MELTS, BOILS = "named after", "name means", "melting point", "boiling point"

LINKS = frozenset(
    {CAPITAL, COUNTRY, CURRENCY, LANGUAGE, CONTINENT, REGION, BORDERS, NEXT, DISCOVERER, PLACE, NAMED_AFTER}
)


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing that has a passage of its own."""

    id: str
    """Of the entity and of its passage."""
    kind: Kind
    name: str
    """Unique in the atlas: how triples and answers call it."""
    label: str
    """How running text calls it ("the Netherlands", "xenon")."""
    title: str
    aliases: tuple[str, ...] = ()
    cluster: str = ""
    """Questions about the entities of one cluster stay in one split (`questions.split_of`)."""
    clear: bool = True
    """False where the label alone could mean another thing, so that no question may start from it."""


class Atlas:
    """Entities by name, and the facts, walked in both directions."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.facts: dict[Triple, str] = {}
        """Triple -> its source."""
        self.rivals: dict[Triple, str] = {}
        self._ends: dict[tuple[str, str], list[str]] = {}
        self._rival_ends: dict[tuple[str, str], list[str]] = {}

    def add(self, entity: Entity) -> None:
        if entity.name in self.entities:
            raise ValueError(f"two entities are called {entity.name!r}")
        self.entities[entity.name] = entity

    def say(self, subject: str, relation: str, object_: str, source: str) -> None:
        """Assert a fact. Saying it again changes nothing."""
        triple = (subject, relation, object_)
        if triple not in self.facts:
            self.facts[triple] = source
            self._ends.setdefault((subject, relation), []).append(object_)
            self._ends.setdefault((object_, "<" + relation), []).append(subject)

    def doubt(self, subject: str, relation: str, object_: str, source: str) -> None:
        """Note a rival: what may be so."""
        self.rivals[(subject, relation, object_)] = source
        self._rival_ends.setdefault((subject, relation), []).append(object_)
        self._rival_ends.setdefault((object_, "<" + relation), []).append(subject)

    def ends(self, start: str, step: str) -> list[str]:
        """What a step leads to. A step is a relation, or `<relation` to go from its object to its subjects."""
        return self._ends.get((start, step), [])

    def end(self, start: str, step: str, but: Collection[str] = ()) -> str | None:
        """The one thing that a step leads to, leaving `but` aside; None where there is none, or rivals, or several."""
        ends = [end for end in self.ends(start, step) if end not in but]
        rivals = [end for end in self._rival_ends.get((start, step), ()) if end not in but]
        return ends[0] if len(ends) == 1 and all(rival == ends[0] for rival in rivals) else None

    def names(self, thing: str, relation: str) -> tuple[str, ...]:
        """All names of the entity or literal to which a relation leads, in either direction; the usual one first."""
        entity = self.entities.get(thing)
        if entity is None:
            return (thing, *self.ends(thing, ALIAS))
        return (thing, *entity.aliases) if relation in LINKS else (thing,)  # the demonym "Chinese" is not Mandarin

    def of_kind(self, kind: Kind) -> list[Entity]:
        return [e for e in self.entities.values() if e.kind == kind]


def triple(start: str, step: str, end: str) -> Triple:
    """The fact behind one step of a walk."""
    return (end, step[1:], start) if step.startswith("<") else (start, step, end)


@cache
def settled_by_hand(file: str) -> dict[str, Any]:
    """A hand-made part of the atlas: `geography.yaml` or `chemistry.yaml`."""
    settled: dict[str, Any] = yaml.safe_load(files("dragoman.corpus.atlas").joinpath(file).read_text(encoding="utf-8"))
    return settled


def other_names(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """The aliases of a name: the given ones, and those of all without diacritics; none twice, none the name itself."""
    given = list(names)
    candidates = [*given, *(fold(n) for n in (name, *given))]
    return tuple(dict.fromkeys(n for n in candidates if n != name))


def rounded(number: float) -> str:
    """Three significant digits and thousands separators: 754394 -> `754,000`."""
    return f"{int(float(f'{number:.3g}')):,}"

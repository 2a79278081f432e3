"""The sentences of the atlas: for each kind of entity, what its passage may say and in which words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dragoman.core.types import Triple
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import Atlas, Entity, Kind, settled_by_hand, triple

LISTED = 10  # most names in an enumeration
A_CITY = 100_000  # inhabitants; a smaller place is a town, unless it is a capital


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    facts: tuple[Triple, ...]


@dataclass(slots=True)
class Writer:
    """Collects the sentences of one passage. The first one of `own` opens it."""

    atlas: Atlas
    entity: Entity
    rng: random.Random
    own: list[Sentence] = field(default_factory=list)
    """About the entity; they may say "it"."""
    context: list[Sentence] = field(default_factory=list)
    """About others; they name what they speak of."""

    def ends(self, step: str, start: str = "") -> list[str]:
        return self.atlas.ends(start or self.entity.name, step)

    def label(self, name: str) -> str:
        entity = self.atlas.entities.get(name)
        return entity.label if entity else name

    def sample(self, names: Sequence[str], most: int) -> list[str]:
        return self.rng.sample(sorted(names), min(most, len(names)))

    def add(self, text: str, *facts: Triple, context: bool = False) -> None:
        sentence = Sentence(text[0].upper() + text[1:] + ("" if text.endswith(".") else "."), facts)
        (self.context if context else self.own).append(sentence)

    def say(self, steps: str | tuple[str, ...], *variants: str, keep: float = 1.0, of: str = "") -> bool:
        """Add one of the variants, and tell whether that was done.

        Args:
            steps: what is said; nothing, when one of them leads nowhere.
            variants: in them `{it}` is the entity, `{0}`, `{1}` what the steps lead to, and `{a}` an article for `{0}`.
            keep: the chance that it is said at all.
            of: the other entity that the steps start from; such a sentence is context.
        """
        steps = (steps,) if isinstance(steps, str) else steps
        start = of or self.entity.name
        chosen = self.rng.choice(variants)
        if self.rng.random() >= keep or not all(self.ends(step, start) for step in steps):
            return False
        parts, facts = [], []
        for step in steps:
            ends = self.ends(step, start)[:LISTED]
            link = step.removeprefix("<") in f.LINKS
            parts.append(listing([self.label(end) if link else end for end in ends]))
            facts += [triple(start, step, end) for end in ends]
        article = "an" if parts[0][0] in "aeiou" else "a"
        self.add(chosen.format(*parts, it=self.label(start), a=article), *facts, context=bool(of))
        return True


def listing(words: Sequence[str]) -> str:
    """`a`; `a and b`; `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _country(w: Writer) -> None:
    if not w.say(
        (f.REGION, f.CONTINENT),
        "{it} is a country in {0}, on the continent of {1}",
        "{it} is a state in {1}; the United Nations count it as part of {0}",
        "{it}, a country in {1}, belongs to the region of {0}",
    ) and not w.say(f.CONTINENT, "{it} is a country in {0}", "{it} is a state on the continent of {0}"):
        w.say(f.REGION, "{it} is a country in {0}", "{it} is a state that the United Nations count as part of {0}")
    w.say(
        f.CAPITAL,
        "its capital is {0}",
        "{0} is the capital of {it}",
        "the government sits in the capital, {0}",
        keep=0.4,
    )
    shared = any(len(w.ends("<" + f.CURRENCY, currency)) > 1 for currency in w.ends(f.CURRENCY))
    w.say(
        f.CURRENCY,
        "its currency is {0}",
        "people there pay with {0}",
        "{0} is the currency of {it}",
        "prices are given in the national currency, {0}",
        keep=1.0 if shared else 0.8,
    )
    if len(w.ends(f.LANGUAGE)) == 1:
        w.say(
            f.LANGUAGE,
            "the official language is {0}",
            "{0} is the official language of {it}",
            "laws and official papers are written in {0}, the official language",
            keep=0.9,
        )
    else:
        w.say(f.LANGUAGE, "its official languages include {0}", "among its official languages are {0}", keep=0.9)
    w.say(
        f.BORDERS,
        "by land it borders {0}",
        "it shares land borders with {0}",
        "{it} has land borders with {0}",
    )
    w.say(
        f.DEMONYM,
        'the demonym for someone from there is "{0}"',
        'a person from {it} is called "{0}" in English',
        'its people go by the demonym "{0}"',
        keep=0.85,
    )
    if not w.say(
        (f.AREA, f.POPULATION),
        "the country covers {0} square kilometres and has about {1} inhabitants",
        "about {1} people live on its {0} square kilometres",
        "it has an area of {0} square kilometres and a population of about {1}",
    ):
        w.say(f.POPULATION, "its population is about {0}", "about {0} people live in {it}")
        w.say(f.AREA, "its area is {0} square kilometres", "it covers {0} square kilometres")
    w.say(
        f.CALLING_CODE,
        "telephone numbers there begin with the international code {0}",
        "its international calling code is {0}",
        keep=0.7,
    )
    w.say(f.DOMAIN, "web addresses of the country end in {0}", "its internet domain is {0}", keep=0.6)


def _city(w: Writer) -> None:
    large = int(w.ends(f.POPULATION)[0].replace(",", "")) >= A_CITY
    what = "city" if large or w.ends("<" + f.CAPITAL) else "town"
    country = w.ends(f.COUNTRY)[0]
    if not w.say(
        ("<" + f.CAPITAL, f.COUNTRY),
        "{it} is the capital of {0}",
        f"{{it}} is a {what} and the capital of {{0}}",
        "{it}, the capital of {0}, is the seat of the country's government",
    ) and not w.say(
        (f.STATE, f.COUNTRY),
        f"{{it}} is a {what} in the state of {{0}} in {{1}}",
        f"{{it}} is a {what} in {{0}}, a state of {{1}}",
    ):
        w.say(
            f.COUNTRY,
            f"{{it}} is a {what} in {{0}}",
            f"{{it}} is a {what} that lies in {{0}}",
            "{it} is one of the better-known places of {0}",
        )
    w.say(
        (f.LATITUDE, f.LONGITUDE),
        "it lies at a latitude of {0} and a longitude of {1}",
        "its coordinates are {0}, {1}",
        "on the map it is found at {0}, {1}",
    )
    w.say(
        f.POPULATION,
        f"the {what} has about {{0}} inhabitants",
        "the gazetteer GeoNames gives its population as {0}",
        f"some {{0}} people live in the {what}",
    )
    w.say(f.POSITION, "it lies {0}", f"the {what} is situated {{0}}")
    w.say(
        f.TIME_ZONE,
        "its clocks follow the time zone {0}",
        "it keeps the time of the zone {0}",
        f"the {what} is in the time zone {{0}}",
    )
    others = w.sample([c for c in w.ends("<" + f.COUNTRY, country)[:8] if c != w.entity.name], w.rng.choice((3, 4)))
    if len(others) > 1:
        text = w.rng.choice(
            ("other places in {1} are {0}", "{0} lie in {1} too", "{1} also has the towns and cities of {0}")
        )
        known = listing([w.label(city) for city in others])
        w.add(text.format(known, w.label(country)), *((city, f.COUNTRY, country) for city in others), context=True)


def _currency(w: Writer) -> None:
    name, users = w.entity.name, w.ends("<" + f.CURRENCY)
    if len(users) == 1:
        w.say("<" + f.CURRENCY, "{it} is the currency of {0}", "{it} is the national currency of {0}")
    else:
        w.say(
            "<" + f.CURRENCY,
            "{it} is a currency that several countries use, {0} among them",
            "{it} is shared by countries such as {0}",
        )
    w.say(
        f.ISO_CODE,
        "its code under ISO 4217 is {0}",
        "banks abbreviate it as {0}",
        "in the standard ISO 4217 it has the code {0}",
    )
    aliases = [alias for alias in w.entity.aliases if alias == f.fold(alias) and alias.lower() not in name.lower()]
    if aliases:
        w.add(f"it is also called the {w.rng.choice(aliases)}")
    _setting(w, w.rng.choice(users))
    _elsewhere(w, f.CURRENCY, users, "{0} uses {1}", "{0} {1}")


def _language(w: Writer) -> None:
    users = w.ends("<" + f.LANGUAGE)
    if len(users) == 1:
        w.say("<" + f.LANGUAGE, "{it} is an official language of {0}", "{it} is a language with official status in {0}")
    else:
        w.say(
            "<" + f.LANGUAGE,
            "{it} is an official language of several countries, among them {0}",
            "{it} is a language with official status in countries such as {0}",
        )
    w.say(
        f.ISO_CODE,
        'its two-letter code is "{0}"',
        'ISO 639-1 gives it the code "{0}"',
        'the standard ISO 639-1 lists it as "{0}"',
    )
    aliases = [alias for alias in w.entity.aliases if alias == f.fold(alias)]
    if aliases:
        w.add(f"it is also known as {w.rng.choice(aliases)}")
    _setting(w, w.rng.choice(users))
    _elsewhere(w, f.LANGUAGE, users, "in {0} official business is done in {1}", "in {0} in {1}")


def _setting(w: Writer, country: str) -> None:
    if not w.say((f.REGION, f.CONTINENT), "{it} lies in {0}, on the continent of {1}", of=country, keep=0.6):
        w.say(f.REGION, "{it} is a country in {0}", "{it} belongs to {0}", of=country)


def _elsewhere(w: Writer, step: str, users: list[str], first: str, later: str) -> None:
    """What other countries have instead: the neighbours of one of the users, or else the others of its region."""
    country = w.rng.choice(users)
    near = w.ends(f.BORDERS, country)
    where = f"among the neighbours of {w.label(country)}, "
    regions = w.ends(f.REGION, country)
    if len(near) < 2 and regions:
        near, where = w.ends("<" + f.REGION, regions[0]), f"elsewhere in {w.label(regions[0])}, "
    others = [n for n in near if n not in users and w.ends(step, n)]
    parts: list[str] = []
    facts: list[Triple] = []
    for other in w.sample(others, 3):
        ends = w.ends(step, other)[:3]
        form = later if parts else first
        parts.append(form.format(w.label(other), listing([w.label(end) for end in ends])))
        facts += [(other, step, end) for end in ends]
    if parts:
        w.add(where + listing(parts), *facts, context=True)


def _region(w: Writer) -> None:
    members = w.ends("<" + f.REGION)
    if members:
        w.say(
            f.CONTINENT,
            "{it} is one of the regions into which the United Nations divide {0}",
            "{it} is a region of {0} in the statistics of the United Nations",
        )
        w.say("<" + f.REGION, "its countries include {0}", "among its countries are {0}")
    else:
        parts = w.ends("<" + f.CONTINENT)
        members = [name for name in parts if w.atlas.entities[name].kind == "country"]
        regions = [name for name in parts if name not in members]
        some = w.sample(members, 8)
        w.add(f"{w.entity.label} is a continent")
        w.add(f"among its countries are {listing([w.label(c) for c in some])}", *_members(w, some))
        if len(regions) > 1:
            names = listing([w.label(region) for region in regions])
            w.add(f"the United Nations divide it into {names}", *_members(w, regions))
    for member in w.sample(members, 3):
        w.say(
            (f.AREA, f.POPULATION),
            "{it} has about {1} inhabitants and an area of {0} square kilometres",
            "in {it}, about {1} people live on {0} square kilometres",
            of=member,
        )


def _members(w: Writer, names: list[str]) -> list[Triple]:
    return [(name, f.CONTINENT, w.entity.name) for name in names]


def _element(w: Writer) -> None:
    w.say(
        (f.SYMBOL, f.NUMBER),
        "{it} is a chemical element with the symbol {0} and the atomic number {1}",
        "{it} is the chemical element with atomic number {1}; its symbol is {0}",
        "{it} (symbol {0}) is element number {1} of the periodic table",
    )
    w.say(f.SERIES, "it is classed as {a} {0}", "chemists classify it as {a} {0}", "it is {a} {0}")
    w.say(f.DISCOVERER, "it was discovered by {0}", "its discovery is credited to {0}", "{0} discovered it", keep=0.8)
    if not w.say(
        (f.YEAR, f.PLACE),
        "the discovery was made in {1} in {0}",
        "the year of its discovery is {0}, the country {1}",
        "it was first found in {0}, in {1}",
    ):
        w.say(f.YEAR, "it was discovered in {0}", "the year of its discovery is {0}")
        w.say(f.PLACE, "it was discovered in {0}", "{0} is the country of its discovery")
    w.say(f.KNOWN_SINCE, "it has been known since {0}", "people have known and used it since {0}")
    described = settled_by_hand("chemistry.yaml")["described"]
    for origin in w.ends(f.NAMED_AFTER):
        text = w.rng.choice(("it is named after {0}", "it owes its name to {0}", "its name goes back to {0}"))
        w.add(text.format(described.get(origin, w.label(origin))), (w.entity.name, f.NAMED_AFTER, origin))
    w.say(f.NAME_MEANS, 'its name comes from a word that means "{0}"', 'the word behind its name means "{0}"')
    if not w.say(
        (f.MELTS, f.BOILS), "it melts at {0} and boils at {1}", "its melting point is {0} and its boiling point {1}"
    ):
        w.say(f.MELTS, "it melts at {0}", "its melting point is {0}")
        w.say(f.BOILS, "it boils at {0}", "its boiling point is {0}")
    if not w.say(
        ("<" + f.NEXT, f.NEXT),
        "in the periodic table it stands between {0} and {1}",
        "{0} comes directly before it in the periodic table, and {1} directly after it",
    ):
        w.say("<" + f.NEXT, "it is the last element of the periodic table so far and comes directly after {0}")
        w.say(f.NEXT, "it opens the periodic table and is followed by {0}")
    w.say(f.PERIOD, "it stands in period {0}", "its place is in period {0} of the table")


def _person(w: Writer) -> None:
    found = w.ends("<" + f.DISCOVERER)
    what = "the chemical element" if len(found) == 1 else "the chemical elements"
    w.say(
        "<" + f.DISCOVERER,
        f"{{it}} discovered {what} {{0}}",
        f"{{it}} is credited with the discovery of {what} {{0}}",
        f"{{it}} was the discoverer, or one of the discoverers, of {what} {{0}}",
    )
    for element in found:
        partners = [person for person in w.ends(f.DISCOVERER, element) if person != w.entity.name]
        if partners:
            facts = [(element, f.DISCOVERER, person) for person in partners]
            w.add(f"the discovery of {w.label(element)} was shared with {listing(partners)}", *facts)
    w.say("<" + f.NAMED_AFTER, "the element {0} is named in honour of this scientist")
    for element in w.sample(found, 3):
        w.say(
            (f.SYMBOL, "<" + f.NEXT, f.NEXT),
            "{it}, written {0} in formulas, stands between {1} and {2} in the periodic table",
            "in the periodic table {it}, with the symbol {0}, comes after {1} and before {2}",
            of=element,
        )
    element = w.rng.choice(found)
    w.say(f.SERIES, "{it} is classed as {a} {0}", "chemists classify {it} as {a} {0}", of=element)
    w.say((f.MELTS, f.BOILS), "{it} melts at {0} and boils at {1}", of=element, keep=0.7)


WRITERS: dict[Kind, Callable[[Writer], None]] = {
    "country": _country,
    "city": _city,
    "currency": _currency,
    "language": _language,
    "region": _region,
    "element": _element,
    "person": _person,
}

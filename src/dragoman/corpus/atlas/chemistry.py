"""Chemical elements and their discoverers out of mendeleev, with credits and doubts settled by `chemistry.yaml`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from dragoman.core.text import slug
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import Atlas, Entity, other_names, settled_by_hand

MENDELEEV, HAND = "mendeleev", "mendeleev and dragoman"
SERIES = {
    1: "nonmetal",
    2: "noble gas",
    3: "alkali metal",
    4: "alkaline earth metal",
    5: "metalloid",
    6: "halogen",
    7: "post-transition metal",
    8: "transition metal",
    9: "lanthanide",
    10: "actinide",
}
PLURALS = {name: f"{name}es" if name.endswith("gas") else f"{name}s" for name in SERIES.values()}
HOME_COUNTRIES = {"England", "Scotland"}  # no countries of the atlas: literals
LAST_MEASURED = 94  # behind plutonium, melting and boiling points are estimates
ZERO_CELSIUS = 273.15


def add(atlas: Atlas) -> None:
    """Add all elements, discoverers and facts of chemistry to the atlas. Geography must be in it."""
    from mendeleev.fetch import fetch_table

    settled = settled_by_hand("chemistry.yaml")
    rows = fetch_table("elements").sort_values("atomic_number").to_dict("records")
    names = {row["symbol"]: row["name"] for row in rows}
    found_by: dict[str, list[str]] = settled["discoverers"]
    clusters = _clusters(found_by)
    for row in rows:
        symbol, name = row["symbol"], row["name"]
        aliases = other_names(name, settled["aliases"].get(symbol, ()))
        identity = f"element-{row['atomic_number']:03d}"
        cluster = clusters.get(symbol, identity)
        atlas.add(Entity(identity, "element", name, name.lower(), name, aliases, cluster))
    for symbol, people in found_by.items():
        for person in people:
            if person not in atlas.entities:
                identity = f"person-{slug(person)}"
                atlas.add(Entity(identity, "person", person, person, person, other_names(person, ()), clusters[symbol]))
            atlas.say(names[symbol], f.DISCOVERER, person, HAND)
    for row in rows:
        _describe(atlas, row, settled)
    for row, following in pairwise(rows):
        atlas.say(row["name"], f.NEXT, following["name"], MENDELEEV)
    transitions = fetch_table("phasetransitions").to_dict("records")
    _add_temperatures(atlas, names, transitions, settled["doubtful_temperature"].split())


def _clusters(found_by: dict[str, list[str]]) -> dict[str, str]:
    """Symbol -> cluster: elements that share a discoverer, directly or through others, belong together."""
    clusters: dict[str, str] = {}
    for symbol, people in found_by.items():
        touched = {clusters[other] for other in clusters if set(people) & set(found_by[other])}
        clusters[symbol] = f"discoverers-{symbol}"
        clusters.update({other: clusters[symbol] for other, cluster in list(clusters.items()) if cluster in touched})
    return clusters


def _describe(atlas: Atlas, row: dict[str, Any], settled: dict[str, Any]) -> None:
    symbol, name = row["symbol"], row["name"]

    def doubtful(what: str) -> bool:
        return symbol in settled[f"doubtful_{what}"].split()

    atlas.say(name, f.SYMBOL, symbol, MENDELEEV)
    atlas.say(name, f.NUMBER, str(row["atomic_number"]), MENDELEEV)
    atlas.say(name, f.PERIOD, str(row["period"]), MENDELEEV)
    if not doubtful("series"):
        series = SERIES[row["series_id"]]
        atlas.say(name, f.SERIES, series, MENDELEEV)
        atlas.say(series, f.ALIAS, PLURALS[series], "dragoman")
    if not math.isnan(row["discovery_year"]) and not doubtful("year"):
        atlas.say(name, f.YEAR, str(int(row["discovery_year"])), MENDELEEV)
    place = row["discovery_location"]
    if isinstance(place, str) and not doubtful("place") and (place in atlas.entities or place in HOME_COUNTRIES):
        atlas.say(name, f.PLACE, place, MENDELEEV)
    if symbol in settled["antiquity"].split():
        atlas.say(name, f.KNOWN_SINCE, "antiquity", MENDELEEV)
    for relation, table in ((f.NAMED_AFTER, settled["named_after"]), (f.NAME_MEANS, settled["name_means"])):
        if symbol in table:
            usual, *others = table[symbol]
            atlas.say(name, relation, usual, HAND)
            if usual not in atlas.entities:
                for other in other_names(usual, others):
                    atlas.say(usual, f.ALIAS, other, "dragoman")


def _add_temperatures(atlas: Atlas, names: dict[str, str], rows: list[dict[str, Any]], doubtful: list[str]) -> None:
    """Melting and boiling points in degrees Celsius, of elements that have one form only in the source."""
    by_number: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_number.setdefault(row["atomic_number"], []).append(row)
    for number, (symbol, name) in enumerate(names.items(), start=1):
        forms = by_number.get(number, [])
        if number > LAST_MEASURED or symbol in doubtful or len(forms) != 1 or isinstance(forms[0]["allotrope"], str):
            continue
        for relation, column in ((f.MELTS, "melting_point"), (f.BOILS, "boiling_point")):
            kelvin = forms[0][column]
            if kelvin is not None and not math.isnan(kelvin):
                atlas.say(name, relation, f"{round(kelvin - ZERO_CELSIUS):,} °C", MENDELEEV)

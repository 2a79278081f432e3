import pytest

from dragoman.core.text import fold, key
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.facts import other_names, rounded, settled_by_hand


@pytest.mark.parametrize(
    "fact",
    [
        ("Bhutan", f.CAPITAL, "Thimphu"),
        ("Bhutan", f.CURRENCY, "Bhutanese ngultrum"),
        ("Bhutan", f.LANGUAGE, "Dzongkha"),
        ("Bhutan", f.CONTINENT, "Asia"),
        ("Bhutan", f.REGION, "Southern Asia"),
        ("Bhutan", f.CALLING_CODE, "+975"),
        ("Bhutan", f.BORDERS, "India"),
        ("Burundi", f.CAPITAL, "Gitega"),
        ("Kazakhstan", f.CAPITAL, "Astana"),
        ("Australia", f.CAPITAL, "Canberra"),
        ("United States", f.CAPITAL, "Washington, D.C."),
        ("Croatia", f.CURRENCY, "euro"),
        ("Ecuador", f.CURRENCY, "United States dollar"),
        ("Senegal", f.CURRENCY, "West African CFA franc"),
        ("Montenegro", f.REGION, "Southern Europe"),
        ("Brazil", f.LANGUAGE, "Portuguese"),
        ("Madagascar", f.DEMONYM, "Malagasy"),
        ("Netherlands", f.DOMAIN, ".nl"),
        ("Milwaukee", f.STATE, "Wisconsin"),
        ("Kyoto", f.COUNTRY, "Japan"),
        ("Sydney", f.LATITUDE, "33.9° S"),
        ("Xenon", f.SYMBOL, "Xe"),
        ("Xenon", f.NUMBER, "54"),
        ("Xenon", f.DISCOVERER, "William Ramsay"),
        ("Germanium", f.DISCOVERER, "Clemens Winkler"),
        ("Germanium", f.YEAR, "1886"),
        ("Germanium", f.PLACE, "Germany"),
        ("Polonium", f.NAMED_AFTER, "Poland"),
        ("Bromine", f.NAME_MEANS, "stench"),
        ("Bromine", f.NEXT, "Krypton"),
        ("Iron", f.MELTS, "1,538 °C"),
        ("Iron", f.KNOWN_SINCE, "antiquity"),
    ],
)
def test_plain_facts(atlas, fact):
    assert fact in atlas.facts


@pytest.mark.parametrize(
    ("subject", "relation"),
    [
        ("Israel", f.CAPITAL),  # disputed
        ("Bolivia", f.CAPITAL),  # two
        ("Bulgaria", f.CURRENCY),  # changed after the sources were made
        ("Zimbabwe", f.CURRENCY),  # several at once
        ("Burkina Faso", f.LANGUAGE),  # French was, until 2024
        ("Australia", f.LANGUAGE),  # no law names one
        ("Turkey", f.CONTINENT),  # on two
        ("Hassium", f.DISCOVERER),  # an institute
        ("Neodymium", f.YEAR),  # the source is wrong
        ("Phosphorus", f.MELTS),  # depends on the form
    ],
)
def test_what_the_atlas_does_not_say(atlas, subject, relation):
    assert subject in atlas.entities
    assert not atlas.ends(subject, relation)


def test_rivals_make_a_step_ambiguous(atlas):
    assert atlas.ends("Morocco", f.LANGUAGE) == ["Arabic"]
    assert atlas.end("Morocco", f.LANGUAGE) is None  # Tamazight is official too
    assert atlas.end("Canada", f.BORDERS) is None  # the sources know only the United States, but there is Hans Island
    assert atlas.end("Portugal", f.BORDERS) == "Spain"
    assert atlas.end("Dzongkha", "<" + f.LANGUAGE) == "Bhutan"
    assert atlas.end("euro", "<" + f.CURRENCY) is None


def test_a_walk_does_not_turn_back(atlas):
    scheele = "Carl Wilhelm Scheele"
    assert set(atlas.ends(scheele, "<" + f.DISCOVERER)) == {"Oxygen", "Chlorine", "Molybdenum"}
    assert atlas.end(scheele, "<" + f.DISCOVERER, but=["Oxygen", "Chlorine"]) == "Molybdenum"


def test_names(atlas):
    assert atlas.names("Bhutanese ngultrum", f.CURRENCY) == ("Bhutanese ngultrum", "ngultrum")
    assert atlas.names("São Tomé", f.CAPITAL) == ("São Tomé", "Sao Tome")
    assert "Mandarin" in atlas.names("Chinese", f.LANGUAGE)
    assert atlas.names("Chinese", f.DEMONYM) == ("Chinese",)
    assert "Danish" in atlas.names("Dane", f.DEMONYM)


def test_the_graph_is_consistent(atlas):
    assert len({entity.id for entity in atlas.entities.values()}) == len(atlas.entities)
    for subject, relation, object_ in atlas.facts:
        assert subject and object_ and "\t" not in subject + object_
        if relation in f.LINKS - {f.NAMED_AFTER, f.PLACE}:
            assert object_ in atlas.entities, (subject, relation, object_)
        if relation == f.BORDERS:
            assert (object_, f.BORDERS, subject) in atlas.facts
        if relation == f.CAPITAL:
            assert (object_, f.COUNTRY, subject) in atlas.facts
    for fact in atlas.rivals:
        assert fact not in atlas.facts


def test_every_country_has_what_its_passage_needs(atlas):
    for country in atlas.of_kind("country"):
        assert atlas.ends(country.name, f.CONTINENT) or atlas.ends(country.name, f.REGION)
    assert len(atlas.of_kind("country")) == 194
    assert sum(bool(atlas.ends(c.name, f.CAPITAL)) for c in atlas.of_kind("country")) > 175


def test_cities_that_share_a_name_are_told_apart(atlas):
    assert atlas.ends("Tripoli", f.COUNTRY) == ["Libya"]
    assert atlas.ends("Tripoli, Lebanon", f.COUNTRY) == ["Lebanon"]
    assert not atlas.entities["Tripoli, Lebanon"].clear
    assert atlas.entities["Liberia, Costa Rica"].label == "Liberia"
    assert atlas.entities["Liberia"].kind == "country"


def test_hand_made_tables_use_codes_that_exist(atlas):
    geography, chemistry = settled_by_hand("geography.yaml"), settled_by_hand("chemistry.yaml")
    scope = set(geography["countries"]["scope"].split())
    by_country = [
        geography["countries"]["names"],
        geography["countries"]["regions"],
        geography["cities"]["names"],
        geography["cities"]["skip"],
        geography["languages"]["wrong"],
        geography["languages"]["missed"],
        geography["demonyms"],
    ]
    for table in by_country:
        assert set(table) <= scope, set(table) - scope  # False would be Norway
    for lists in (geography["capitals"], geography["currencies"], geography["languages"], geography["continents"]):
        for codes in lists.values():
            if isinstance(codes, str):
                assert set(codes.split()) <= scope
    symbols = {atlas.ends(e.name, f.SYMBOL)[0] for e in atlas.of_kind("element")}
    for name, table in chemistry.items():
        if name != "described":
            assert set(table.split() if isinstance(table, str) else table) <= symbols, name
    assert set(chemistry["described"]) <= {names[0] for names in chemistry["named_after"].values()}


def test_helpers():
    assert fold("São Tomé") == "Sao Tome"
    assert key("Côte d'Ivoire") == "cote d ivoire"
    assert other_names("Kraków", ["Cracow", "Kraków"]) == ("Cracow", "Krakow")
    assert [rounded(n) for n in (754394, 26, 1411778724, 999.6)] == ["754,000", "26", "1,410,000,000", "1,000"]

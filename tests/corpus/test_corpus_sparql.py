"""A knowledge graph in RDF: names for terms and back, and SPARQL."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.corpus import load_corpus
from dragoman.corpus.triples import as_rdf, iri, named, read_triples, sparql

RDF = """\
<http://x.org/Q790> <http://www.w3.org/2000/01/rdf-schema#label> "Haïti"@fr .
<http://x.org/Q790> <http://www.w3.org/2000/01/rdf-schema#label> "Haiti"@en .
<http://x.org/Q790> <http://x.org/P36> <http://x.org/Port-au-Prince> .
<http://x.org/P36> <http://www.w3.org/2000/01/rdf-schema#label> "capital" .
<http://x.org/Port-au-Prince> <http://x.org/ontology#founded_in> "1749"^^<http://www.w3.org/2001/XMLSchema#gYear> .
<http://x.org/Q790> <http://x.org/borders> <http://x.org/Rep%C3%BAblica_Dominicana> .
# a comment

_:b0 <http://x.org/P36> <http://x.org/Port-au-Prince> .
<http://x.org/Q790> <http://x.org/motto> "" .
<http://x.org/Q790> <http://x.org/motto> "L'union\\nfait la force" .
"""
TRIPLES = {
    ("Haiti", "capital", "Port-au-Prince"),
    ("Port-au-Prince", "founded in", "1749"),
    ("Haiti", "borders", "República Dominicana"),
    ("_:1", "capital", "Port-au-Prince"),
    ("Haiti", "motto", "L'union fait la force"),
}
TSV = "Equatorial Guinea\tofficial language\tSpanish\nMalabo\tcountry\tEquatorial Guinea\nN'Djamena\tcountry\tChad\n"


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "triples.nt"
    path.write_text(RDF, encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_text(TSV, encoding="utf-8")
    return path


def test_terms_become_names(graph):
    assert set(read_triples(graph)) == TRIPLES
    assert read_triples(graph) == read_triples(graph)  # blank nodes too are called the same each time


def test_turtle_is_read_too(tmp_path):
    path = tmp_path / "triples.ttl"
    path.write_text('@prefix x: <http://x.org/> .\nx:Haiti x:capital x:Port-au-Prince ; x:borders "Cuba", x:Jamaica .')
    told = {(p.title, p.text) for p in load_corpus(path)}
    assert told == {("Haiti", "capital: Port-au-Prince"), ("Haiti", "borders: Cuba"), ("Haiti", "borders: Jamaica")}


def test_each_triple_of_an_rdf_file_is_a_passage(graph):
    passages = load_corpus(graph)
    assert {(p.title, *p.text.split(": ")) for p in passages} == TRIPLES
    assert {p.id for p in passages} == {"\t".join(triple) for triple in TRIPLES}


def test_entities_of_one_name_are_told_apart(tmp_path):
    path = tmp_path / "triples.nt"
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    path.write_text(
        f'<http://x.org/Q230> {label} "Georgia" .\n<http://x.org/Q1428> {label} "Georgia" .\n'
        '<http://x.org/Q230> <http://x.org/capital> "Tbilisi" .\n<http://x.org/Q1428> <http://x.org/capital> "Atlanta" .\n'
        '<http://a.org/Bath> <http://a.org/in> "England" .\n<http://b.org/Bath> <http://b.org/in> "Maine" .\n'
    )
    subjects = {obj: subject for subject, _, obj in read_triples(path)}
    assert (subjects["Tbilisi"], subjects["Atlanta"]) == ("Georgia (Q230)", "Georgia (Q1428)")
    assert subjects["England"] != subjects["Maine"] and "http://b.org/Bath" in subjects["Maine"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.nt", b"<a:a> <b:b> bad .\n", "t.nt: not nt .Invalid line: bad"),
        ("t.nt", b'<a:a> <b:b> "caf\xe9" .\n', "t.nt: not nt .'utf-8' codec"),
        ("t.ttl", b"@prefix : <u:> .\n:a :b ;; c", "t.ttl: not turtle .at line 2"),
        ("t.nt", b"", "t.nt: holds no triple"),
        ("t.nt", b'<a:a> <http://www.w3.org/2000/01/rdf-schema#label> "A" .\n', "t.nt: holds no triple"),
    ],
)
def test_a_broken_or_empty_file_is_refused(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        load_corpus(tmp_path / name)


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)
names = st.one_of(st.sampled_from(["a_b", "a b", "50%", "a/b#c:d", "Washington D.C."]), words)


@given(st.lists(st.tuples(names, names, names), max_size=12, unique=True))
def test_names_survive_the_way_to_n_triples_and_back(tmp_path_factory, triples):
    path = tmp_path_factory.mktemp("rdf") / "triples.nt"
    as_rdf(triples).serialize(path, format="nt", encoding="utf-8")
    assert set(named(as_rdf(triples))) == set(triples)
    if triples:
        assert set(read_triples(path)) == set(triples)


def test_an_iri_can_be_written_down():
    assert str(iri("Equatorial Guinea")) == "urn:dragoman:Equatorial_Guinea"
    assert str(iri("a_b (N'Djamena)")) == "urn:dragoman:a%5Fb_%28N%27Djamena%29"


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ("SELECT ?city ?of { ?city :country ?of } ORDER BY ?city", ["city\tof", ":Malabo\t:Equatorial_Guinea", ":N%27Djamena\t\"Chad\""]),
        ("SELECT (COUNT(*) AS ?n) { ?city :country ?of }", ["n", '"2"^^xsd:integer']),
        ("SELECT ?l { :Malabo :country/:official_language ?l }", ["l", '"Spanish"']),
        ("SELECT ?x ?y { ?x :official_language ?z OPTIONAL { ?x :anthem ?y } }", ["x\ty", ":Equatorial_Guinea\t"]),
        ("SELECT ?x { ?x :anthem ?y }", ["x"]),
        ("ASK { :Malabo ?p :Equatorial_Guinea }", ["true"]),
        ("CONSTRUCT { ?o :has ?s } { ?s :country ?o . ?o :official_language ?l }", ["<urn:dragoman:Equatorial_Guinea> <urn:dragoman:has> <urn:dragoman:Malabo> ."]),
    ],
)  # fmt: skip
def test_a_query_is_answered(table, query, lines):
    assert sparql(table, query) == lines


def test_a_query_uses_the_names_of_an_rdf_file(graph):
    assert sparql(graph, "PREFIX x: <http://x.org/> SELECT ?c { x:Q790 x:P36 ?c }")[1:] == [
        "<http://x.org/Port-au-Prince>"
    ]


@pytest.mark.parametrize("query", ["SELECT", "SELECT ?x { ?x foo:bar ?y }", "INSERT DATA { :a :b :c }", "", "DROP ALL"])
def test_a_query_that_is_none_is_refused(table, query):
    with pytest.raises(UserError, match=r"^SPARQL: "):
        sparql(table, query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT ?a { SERVICE <{url}> { ?a ?b ?c } }",
        "SELECT ?a { ?a ?b ?c FILTER EXISTS { SERVICE SILENT <{url}> { ?a ?b ?c } } }",
        "SELECT ?a FROM <{url}> { ?a ?b ?c }",
    ],
)
def test_a_query_that_would_ask_another_machine_is_refused(tmp_path, query):
    path = tmp_path / "triples.tsv"
    path.write_text("Bhutan\tcapital\tThimphu\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        with pytest.raises(UserError, match="SERVICE and FROM ask other machines"):
            sparql(path, query.replace("{url}", f"http://127.0.0.1:{listener.getsockname()[1]}/"))
        with pytest.raises(BlockingIOError):
            listener.accept()

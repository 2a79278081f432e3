"""A knowledge graph as a corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.corpus.triples import entity_passages, read_triples

TSV = "Haiti\tcapital\tPort-au-Prince\nHaiti\tborders\tDominican Republic\n\nHinche\tcountry\tHaiti\n"


def test_an_entity_is_what_it_heads_and_what_ends_in_it(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_text(TSV + "Jacmel\tcountry\tHaiti\nHaiti\tborders\tCuba\n", encoding="utf-8")
    assert load_corpus(path) == [
        Passage(
            "Haiti",
            "Haiti",
            "capital: Port-au-Prince. borders: Dominican Republic, Cuba. country of: Hinche, Jacmel.",
        ),
        Passage("Hinche", "Hinche", "country: Haiti."),
        Passage("Jacmel", "Jacmel", "country: Haiti."),
    ]
    assert [p.id for p in load_corpus(path, limit=1)] == ["Haiti"]


def test_triples_are_read_in_order_and_once(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + TSV.replace("\n", "\r\n").encode() + b"Haiti \t capital\tPort-au-Prince\n")
    assert read_triples(path) == [
        ("Haiti", "capital", "Port-au-Prince"),
        ("Haiti", "borders", "Dominican Republic"),
        ("Hinche", "country", "Haiti"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"Haiti\tcapital", r"triples\.tsv:4: expected subject, relation and object"),
        (b"Haiti capital Port-au-Prince", r"triples\.tsv:4: expected subject"),
        (b"Haiti\t \tPort-au-Prince", r"triples\.tsv:4: expected subject"),
        (b"a\tb\tc\td", r"triples\.tsv:4: expected subject"),
        (b"Haiti\tcapital\tcaf\xe9", r"triples\.tsv:4: not valid UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "triples.tsv"
    path.write_bytes(b"a\tb\tc\n" * 3 + line + b"\n")
    with pytest.raises(UserError, match=complaint):
        load_corpus(path)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_graph_is_refused(tmp_path, text):
    path = tmp_path / "triples.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"triples\.tsv: holds no triple"):
        load_corpus(path)


def test_a_graph_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_triples(tmp_path / "triples.tsv")


names = st.sampled_from(["Haiti", "Cuba", "Hinche", "borders", "42"])


@given(st.lists(st.tuples(names, names, names), max_size=20))
def test_every_triple_stands_with_its_subject_and_with_its_object_if_that_is_an_entity(triples):
    passages = {p.id: p for p in entity_passages(triples)}
    assert list(passages) == list(dict.fromkeys(subject for subject, _, _ in triples))

    def says(entity: str, relation: str, other: str) -> bool:
        sentences = (s.removesuffix(".").split(": ") for s in passages[entity].text.split(". "))
        return any(name == relation and other in of.split(", ") for name, of in sentences)

    for subject, relation, obj in triples:
        assert says(subject, relation, obj)
        assert obj not in passages or says(obj, f"{relation} of", subject)


def test_a_relation_that_is_called_as_an_inverse_loses_nothing():
    (rome, italy) = entity_passages([("Rome", "capital of", "Italy"), ("Italy", "capital", "Rome")])
    assert rome.text == "capital of: Italy. capital of: Italy." and italy.text == "capital: Rome. capital of of: Rome."


@pytest.mark.parametrize("value", ["1E+999999999", "-1e9"])
def test_a_decimal_that_stands_for_a_billion_digits_is_refused_with_its_line(tmp_path, value):
    path = tmp_path / "graph.nt"
    fine = '<urn:a> <urn:b> "1.50"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n'
    path.write_text(fine + f'<urn:a> <urn:b> "{value}"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n')
    with pytest.raises(UserError, match=r"graph.nt:2: .*no xsd:decimal"):
        read_triples(path)
    path.write_text(fine)
    assert read_triples(path) == [("a", "b", "1.50")]

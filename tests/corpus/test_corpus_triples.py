"""A knowledge graph as a corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.corpus.triple_passages import ends, triple_of, triple_passages
from dragoman.corpus.triples import read_triples

TSV = "Haiti\tcapital\tPort-au-Prince\nHaiti\tborders\tDominican Republic\n\nHinche\tcountry\tHaiti\n"


def test_a_graph_as_a_corpus_has_a_passage_for_each_triple(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_text(TSV, encoding="utf-8")
    assert load_corpus(path) == [
        Passage("Haiti\tcapital\tPort-au-Prince", "Haiti", "capital: Port-au-Prince"),
        Passage("Haiti\tborders\tDominican Republic", "Haiti", "borders: Dominican Republic"),
        Passage("Hinche\tcountry\tHaiti", "Hinche", "country: Haiti"),
    ]


def test_triples_are_read_in_order_and_once(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + TSV.replace("\n", "\r\n").encode() + b"Haiti \t capital\tPort-au-Prince\n")
    assert read_triples(path) == [
        ("Haiti", "capital", "Port-au-Prince"),
        ("Haiti", "borders", "Dominican Republic"),
        ("Hinche", "country", "Haiti"),
    ]


@pytest.mark.parametrize("header", ["Subject\trelation\tobject", "\ufeffsubject\tPREDICATE \tobject"])
def test_a_first_line_that_names_the_columns_is_no_triple(tmp_path, header):
    path = tmp_path / "triples.tsv"
    path.write_text(f"{header}\na\tb\tc\nsubject\trelation\tobject\n", encoding="utf-8")
    assert read_triples(path) == [("a", "b", "c"), ("subject", "relation", "object")]


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


names = st.text(alphabet="ab ,.:|'", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(st.lists(st.tuples(names, names, names), max_size=9, unique=True))
def test_a_passage_is_its_triple_and_about_both_ends(triples):
    passages = triple_passages(triples)
    assert [triple_of(passage) for passage in passages] == triples
    assert all(set(ends(p)) == {t[0], t[2]} for p, t in zip(passages, triples, strict=True))


def test_a_passage_of_text_is_no_triple_and_about_its_title():
    assert triple_of(Passage("p1", "Haiti", "It is a country.")) is None
    assert ends(Passage("p1", "Haiti", "It is a country.")) == ("Haiti",) and ends(Passage("p2", "", "It is.")) == ()


@pytest.mark.parametrize("value", ["1E+999999999", "-1e9"])
def test_a_decimal_that_stands_for_a_billion_digits_is_refused_with_its_line(tmp_path, value):
    path = tmp_path / "graph.nt"
    fine = '<urn:a> <urn:b> "1.50"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n'
    path.write_text(fine + f'<urn:a> <urn:b> "{value}"^^<http://www.w3.org/2001/XMLSchema#decimal> .\n')
    with pytest.raises(UserError, match=r"graph.nt:2: .*no xsd:decimal"):
        read_triples(path)
    path.write_text(fine)
    assert read_triples(path) == [("a", "b", "1.50")]

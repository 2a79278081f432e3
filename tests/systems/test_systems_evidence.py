"""Passages by their sentences: cut and joined, and which of them an oracle needs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.types import Passage
from dragoman.systems.base import Gold
from dragoman.systems.evidence import evidence, joined, merged, pieces
from dragoman.systems.options import MOST

BRIDGE = Passage("b", "Tarn Bridge", "It spans the Tarn. Edith Marlowe drew it in 1871. Its arches are of stone.")
EDITH = Passage("e", "Edith Marlowe", "She drew bridges. She was born in Perth. She liked tea.")
QUESTION = "Where was the designer of the Tarn Bridge born?"


def texts(passages):
    return [passage.text for passage in passages]


def test_a_passage_is_cut_into_its_sentences_and_the_first_has_its_title():
    assert [(piece.id, piece.title, piece.text) for piece in pieces([BRIDGE, EDITH])[:4]] == [
        ("b", "Tarn Bridge", "It spans the Tarn."),
        ("b", "", "Edith Marlowe drew it in 1871."),
        ("b", "", "Its arches are of stone."),
        ("e", "Edith Marlowe", "She drew bridges."),
    ]


def test_passages_with_too_many_sentences_to_be_listed_keep_the_rest_in_their_last_piece():
    long = Passage("l", "Long", " ".join(f"This is sentence {i}." for i in range(MOST)))
    found = pieces([long, replace(long, id="m"), BRIDGE])  # 100 // 3 = 33 of each
    assert [sum(piece.id == id for piece in found) for id in "lmb"] == [33, 33, 3]
    assert found[32].text.startswith("This is sentence 32. This is sentence 33.")


def test_what_is_taken_of_a_passage_stands_under_its_title_in_the_order_of_the_passages():
    _, drew, arches, *_, born, _ = pieces([BRIDGE, EDITH])
    assert joined([BRIDGE, EDITH], [born, drew, arches]) == [
        Passage("b", "Tarn Bridge", "Edith Marlowe drew it in 1871. Its arches are of stone."),
        Passage("e", "Edith Marlowe", "She was born in Perth."),
    ]


def test_sentences_that_are_kept_of_a_passage_twice_are_added_to_it_and_none_stands_there_twice():
    spans, drew, arches, *_ = pieces([BRIDGE])
    twice = [*joined([BRIDGE], [spans, drew]), EDITH]
    again = [*joined([BRIDGE], [drew, arches]), *joined([BRIDGE], [spans, arches])]
    assert merged([*twice, *again]) == {"b": BRIDGE, "e": EDITH}


@given(st.lists(st.text(alphabet="aB .?\n", max_size=60), max_size=4))
def test_all_pieces_together_are_the_passages(written):
    passages = [Passage(str(i), "T", " ".join(text.split())) for i, text in enumerate(written)]
    assert joined(passages, pieces(passages)) == passages


def knowing(answers=("Perth",), triples=(), found=()):
    """A gold of both passages. Of queries with a word of `found` the one about Edith Marlowe is found."""

    async def find(query: str, k: int) -> list[str]:
        return ["e"] if any(word in query for word in found) else []

    return Gold(frozenset("be"), find, answers, triples)


@pytest.mark.parametrize(
    ("gold", "passage", "needed"),
    [
        (knowing(), EDITH, ["She was born in Perth."]),
        (knowing(found=["Marlowe"]), BRIDGE, ["Edith Marlowe drew it in 1871."]),
        (knowing(triples=[("Tarn Bridge", "arches", "stone")]), BRIDGE, ["Its arches are of stone."]),
        (knowing(answers=("yes",)), replace(EDITH, text="She drew much. She was born then."), ["She was born then."]),
        (knowing(answers=("no",)), replace(EDITH, text="She had no house. She was born then."), ["She was born then."]),
        (
            knowing(answers=("The Swans",)),
            replace(EDITH, text="She was born then. Swans drew her."),
            ["Swans drew her."],
        ),
        (knowing(answers=("Tarn Bridge",)), BRIDGE, ["It spans the Tarn."]),
    ],
    ids=[
        "tells the answer",
        "leads on",
        "tells an end of a triple",
        "shares most words",
        "has a no that answers nothing",
        "tells it without its article",
        "names nothing but its title",
    ],
)
async def test_evidence_of_a_gold_passage(gold, passage, needed):
    assert texts(await evidence("sentences", gold, QUESTION, pieces([passage]), k=5)) == needed

from dataclasses import replace

import pytest

from dragoman.core.types import Question
from dragoman.corpus.atlas.verify import TripleIndex, verify

BHUTAN = [
    ("Bhutan", "capital", "Thimphu"),
    ("Bhutan", "currency", "Bhutanese ngultrum"),
    ("Bhutanese ngultrum", "also called", "ngultrum"),
    ("Bhutan", "area in km²", "38,400"),
    ("Nepal", "capital", "Kathmandu"),
    ("Nepal", "area in km²", "147,000"),
    ("Nepal", "borders", "India"),
    ("Bhutan", "borders", "India"),
    ("Thimphu", "latitude", "27.5° N"),
    ("Canberra", "latitude", "35.3° S"),
    ("Nepal", "continent", "Asia"),
    ("Bhutan", "continent", "Asia"),
    ("France", "continent", "Europe"),
]
INDEX = TripleIndex(BHUTAN)
BRIDGE = Question(
    "q",
    "Which currency is used in the country whose capital is Thimphu?",
    ("Bhutanese ngultrum", "ngultrum"),
    "compositional",
    (),
    (BHUTAN[0], BHUTAN[1]),
)
LARGER = Question(
    "q", "Which country has the larger area, Bhutan or Nepal?", ("Nepal",), "comparison", (), (BHUTAN[3], BHUTAN[5])
)
NORTH = replace(
    LARGER,
    question="Which lies farther north, Canberra or Thimphu?",
    answers=("Thimphu",),
    triples=(BHUTAN[9], BHUTAN[8]),
)
SAME = replace(
    LARGER, question="Are Nepal and Bhutan on the same continent?", answers=("yes",), triples=(BHUTAN[10], BHUTAN[11])
)
CAPITALS = Question(
    "q",
    "Which is the capital of the country with the smaller area, Kathmandu or Thimphu?",
    ("Thimphu",),
    "bridge_comparison",
    (),
    (BHUTAN[4], BHUTAN[5], BHUTAN[0], BHUTAN[3]),
)


@pytest.mark.parametrize("question", [BRIDGE, LARGER, NORTH, SAME, CAPITALS])
def test_right_questions_pass(question):
    assert verify(question, INDEX) == []


def test_a_name_within_a_longer_name_starts_no_second_way():
    facts = [
        ("Sierra Leone", "currency", "Sierra Leonean leone"),
        ("Sierra Leonean leone", "also called", "leone"),
        BHUTAN[1],
    ]
    pays = Question(
        "q",
        "Does one pay with the same money in Bhutan and in Sierra Leone?",
        ("no",),
        "comparison",
        (),
        (BHUTAN[1], facts[0]),
    )
    assert verify(pays, TripleIndex(facts)) == []


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        (replace(BRIDGE, answers=("Indian rupee",)), "no way from something"),
        (replace(BRIDGE, answers=("ngultrum", "Bhutanese ngultrum")), "are not the names"),
        (replace(BRIDGE, answers=("Bhutanese ngultrum", "rupee")), "are not the names"),
        (replace(BRIDGE, question="Which currency is used in that country?"), "no way from something"),
        (replace(BRIDGE, question="Thimphu's country pays in ngultrum. What is it?"), "says its answer"),
        (replace(BRIDGE, triples=(BHUTAN[0], ("Bhutan", "currency", "euro"))), "not among the triples"),
        (replace(BRIDGE, triples=(BHUTAN[4], BHUTAN[1])), "no way from something"),
        (replace(BRIDGE, triples=()), "no answer or no path"),
        (replace(BRIDGE, answers=()), "no answer or no path"),
        (replace(BRIDGE, type="riddle"), "unknown type"),
        (replace(LARGER, answers=("Bhutan",)), "should be 'Nepal'"),
        (replace(LARGER, question=LARGER.question.replace("larger", "smaller")), "should be 'Bhutan'"),
        (replace(LARGER, triples=(BHUTAN[3], BHUTAN[3])), "compares a thing with itself"),
        (replace(LARGER, question="Which has the larger area, Bhutan or the other?"), "not one way"),
        (replace(NORTH, answers=("Canberra",)), "should be 'Thimphu'"),
        (replace(SAME, answers=("no",)), "should be yes"),
        (replace(CAPITALS, answers=("Kathmandu",)), "should be 'Thimphu'"),
    ],
)
def test_wrong_questions_are_found(question, fault):
    assert any(fault in found for found in verify(question, INDEX))


def test_several_answers_are_found():
    ambiguous = Question("q", "Which country borders India?", ("Nepal",), "single_hop", (), (BHUTAN[6],))
    assert any("several answers" in fault for fault in verify(ambiguous, INDEX))


def test_a_comparison_must_say_which_side_it_asks_for():
    with pytest.raises(ValueError, match="cannot tell"):
        verify(replace(LARGER, question="What about the area, Bhutan or Nepal?"), INDEX)

from types import SimpleNamespace

import pytest

from dragoman.core.types import Passage, Question
from dragoman.rewards.citations import answer_words, citation_precision, citation_recall, cited, length_penalty
from dragoman.systems.base import StopReason

BHUTAN = Passage("bt#1", "Bhutan", "Its capital is Thimphu.")
MONEY = Passage("money", "Money", "In Bhutan one pays with the ngultrum.")
TOWN = Passage("town", "Thimphu", "A town in the Himalayas.")
QUESTION = Question("q", "Capital and money of Bhutan?", ("Thimphu and ngultrum",), supporting_ids=("bt", "money"))


def said(answer: str | None) -> SimpleNamespace:
    return SimpleNamespace(nodes=[], steps=[], answer=answer, passages=[], stop=StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("answer", "ids", "precision", "recall"),
    [
        ("Thimphu. The ngultrum.", ["bt#1", "money", "town"], 2 / 3, 1),  # a chunk counts for its passage
        ("Thimphu", ["bt#1", "town"], 1 / 2, 1 / 2),
        ("the ngultrum", ["money"], 1, 1 / 2),
        ("Paro", [], 0, 0),
        ("", [], 0, 0),
    ],
)
def test_an_answer_rests_on_the_passages_that_say_what_it_adds(answer, ids, precision, recall):
    passages = [BHUTAN, MONEY, TOWN]
    assert cited(QUESTION.question, answer, passages) == ids
    assert citation_precision(QUESTION, said(answer), passages) == pytest.approx(precision)
    assert citation_recall(QUESTION, said(answer), passages) == pytest.approx(recall)


def test_of_a_claim_without_names_half_of_the_words_are_enough():
    found = [Passage("a", "", "cold rain in the morning"), Passage("b", "", "rain")]
    assert cited("What is the weather like?", "cold rain and hail", found) == [
        "a"
    ]  # two of three words, and one of three


def test_two_chunks_of_a_gold_passage_are_one():
    chunks = [BHUTAN, Passage("bt#2", "Bhutan", "Thimphu is high up.")]
    question = Question("q", "Capital of Bhutan?", ("Thimphu",), supporting_ids=("bt", "other"))
    assert citation_recall(question, said("Thimphu"), chunks) == 0.5
    assert citation_precision(question, said("Thimphu"), chunks) == 1


def test_without_gold_or_an_answer_there_is_no_score():
    assert citation_precision(Question("q", "?", ("x",)), said("x"), [TOWN]) is None
    assert citation_recall(QUESTION, said(None), [TOWN]) is None
    assert answer_words(QUESTION, said(None), []) is None
    assert answer_words(QUESTION, said("two  words"), []) == 2


@pytest.mark.parametrize(("answer", "value"), [("one two", 0), ("one two three", -1), ("", 0), (None, None)])
def test_an_answer_longer_than_the_limit_is_punished(answer, value):
    assert length_penalty(QUESTION, said(answer), [], words=2) == value

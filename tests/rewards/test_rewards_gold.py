"""Rewards by gold passages, by hand."""

from types import SimpleNamespace

import pytest

from dragoman.core.types import Question
from dragoman.corpus.chunking import gold_id
from dragoman.rewards.gold import gold_precision, gold_recall
from dragoman.systems.base import StopReason

QUESTION = Question("q", "?", ("a",), supporting_ids=("x", "y"))


def kept(*ids: str, stop: StopReason = StopReason.ANSWERED) -> SimpleNamespace:
    return SimpleNamespace(passages=list(ids), stop=stop, answer="a")


@pytest.mark.parametrize(
    ("ids", "recall", "precision"),
    [
        (("x", "y"), 1, 1),
        (("x",), 0.5, 1),
        (("x", "u", "v"), 0.5, 1 / 3),
        (("u",), 0, 0),
        ((), 0, 0),
        (("x#0", "x#7", "u#0"), 0.5, 2 / 3),  # chunks count for the passages that they were cut from
        (("xy#0", "x#0#1"), 0, 0),
    ],
)
def test_shares_of_gold_and_kept_passages(ids, recall, precision):
    assert gold_recall(QUESTION, kept(*ids), []) == recall
    assert gold_precision(QUESTION, kept(*ids), []) == pytest.approx(precision)


def test_a_gold_passage_that_is_named_twice_counts_once():
    twice = Question("q", "?", ("a",), supporting_ids=("x", "x", "y"))
    assert gold_recall(twice, kept("x"), []) == 0.5


@pytest.mark.parametrize(
    ("id", "gold", "named"),
    [
        ("C##0", ["C#"], "C#"),
        ("C#", ["C"], None),
        ("guide.md#install", ["guide.md"], None),
        ("#0", [""], None),
        ("a\nb#12", ["a\nb"], "a\nb"),
        ("a#1", ["a#1", "a"], "a#1"),
        ("a", [], None),
    ],
)
def test_an_id_with_the_mark_of_a_chunk_is_no_chunk(id, gold, named):
    assert gold_id(id, gold) == named


@pytest.mark.parametrize("score", [gold_recall, gold_precision])
def test_what_is_not_known_is_not_zero(score):
    assert score(Question("q", "?"), kept("x"), []) is None
    assert score(QUESTION, kept(stop=StopReason.RETRIEVER_FAULT), []) is None

"""What greedy episodes on the dev questions are worth, by hand."""

from types import SimpleNamespace

import pytest

from dragoman.core.errors import Fault
from dragoman.training.rollouts import summary


def episode(passages: list[str], gold: list[str]) -> SimpleNamespace:
    trajectory = SimpleNamespace(rewards={"r": 1.0}, nodes=[], steps=[], passages=passages)
    return SimpleNamespace(question={"supporting_ids": gold}, trajectories=[trajectory], nodes=[], faulty=False)


def test_an_outage_on_dev_is_no_score():
    stop = SimpleNamespace(is_fault=True)
    away = SimpleNamespace(faulty=True, trajectories=[SimpleNamespace(stop=stop, reward_fault="", error="away")])
    with pytest.raises(Fault, match="every question met a fault, the first: away"):
        summary([away, away], "r")  # type: ignore[list-item]


def test_recall_and_precision_on_dev_count_a_chunk_for_the_passage_it_was_cut_from():
    row = summary([episode(["a#0", "x"], ["a", "b"]), episode(["c"], ["c"]), episode(["y"], [])], "r")
    assert (row["dev_recall"], row["dev_precision"]) == (0.75, 0.75)  # the third question has no gold


def test_without_gold_there_is_neither():
    assert "dev_recall" not in summary([episode(["y"], [])], "r")

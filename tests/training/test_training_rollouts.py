"""What greedy episodes on the dev questions are worth, by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from toy import QUESTIONS, make_run

from dragoman.core.errors import Fault
from dragoman.rollout.record import Trajectory
from dragoman.systems.base import StopReason
from dragoman.training.rollouts import Rollouts, summary


def episode(
    passages: list[str], gold: list[str], stop: StopReason = StopReason.ANSWERED, **fault: str
) -> SimpleNamespace:
    rewards = {"r": None if stop.is_fault or fault else 1.0}
    own = Trajectory(nodes=[], steps=[], answer="", passages=passages, stop=stop, rewards=rewards, **fault)
    question = {"id": str(len(ASKED)), "supporting_ids": gold}
    ASKED.append(question)
    return SimpleNamespace(question=question, trajectories=[own], nodes=[], faulty=bool(fault))


ASKED: list[dict[str, Any]] = []


def well(count: int) -> list[SimpleNamespace]:
    return [episode([], []) for _ in range(count)]


AWAY, AWAY_TOO = (episode([], [], StopReason.ENGINE_FAULT, error="away") for _ in range(2))
BROKEN, BROKEN_TOO = (episode([], [], StopReason.SYSTEM_FAULT, error="a bug") for _ in range(2))
UNJUDGED = episode([], [], reward_fault="no verdict")


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([AWAY, AWAY_TOO], "every question met a fault, the first: away"),
        ([BROKEN, BROKEN_TOO], "every question met a fault, the first: a bug"),
        ([*well(17), UNJUDGED, AWAY], "2 of 19 questions met a fault, the first: no verdict"),
    ],
)
def test_an_outage_on_dev_is_no_score(episodes, message):
    with pytest.raises(Fault, match=message):
        summary(episodes, "r")


@pytest.mark.parametrize("episodes", [[*well(18), UNJUDGED, AWAY], [*well(2), BROKEN, BROKEN_TOO]])
def test_few_faults_on_dev_and_those_that_would_come_again_are_counted(episodes):
    row = summary(episodes, "r")
    assert (row["dev_reward"], row["dev_unscored"]) == (1.0, 2)


def test_recall_and_precision_on_dev_count_a_chunk_for_the_passage_it_was_cut_from():
    row = summary([episode(["a#0", "x"], ["a", "b"]), episode(["c"], ["c"]), episode(["y"], [])], "r")
    assert (row["dev_recall"], row["dev_precision"]) == (0.75, 0.75)  # the third question has no gold


@pytest.mark.parametrize("stop", [StopReason.PROMPT_TOO_LONG, StopReason.ENGINE_FAULT])
def test_a_question_that_was_not_answered_for_want_of_a_model_or_of_room_has_no_recall_on_dev(stop):
    row = summary([*(episode(["a"], ["a"]) for _ in range(19)), episode([], ["a"], stop, error="why")], "r")
    assert (row["dev_recall"], row["dev_precision"]) == (1.0, 1.0)


def test_without_gold_there_is_neither():
    assert "dev_recall" not in summary([episode(["y"], [])], "r")


async def test_runs_of_neighbouring_seeds_draw_by_other_numbers(tiny_model, runtime, tmp_path, monkeypatch):
    drawn = []

    async def record(*_: Any, seed: int, **__: Any) -> list[Any]:
        drawn.append(seed)
        return []

    monkeypatch.setattr(Rollouts, "run", record)
    for seed in (0, 1):
        loop = make_run("mygo", tiny_model, runtime, tmp_path / str(seed))
        loop.run = replace(loop.run, seed=seed)
        for loop.iteration in (0, 1):
            await loop.roll_out(QUESTIONS)
            await loop.draw(QUESTIONS, 0)
            await loop.draw(QUESTIONS, 1)
    assert len(set(drawn)) == len(drawn) == 12

"""The endpoint's watch for drift, fed with episodes of real requests, and the command that shows what it has found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from serving_parts import Model, Parts, Registry, ask, searching

from dragoman.config import Params
from dragoman.core.errors import UserError
from dragoman.evaluation.drift import Drift
from dragoman.evaluation.settings import DriftParams
from dragoman.pipeline import drift as stage
from dragoman.pipeline.project import Project
from dragoman.rollout.feedback import Feedback
from dragoman.rollout.record import Episode
from dragoman.serving.drift import drift_watcher
from dragoman.serving.metrics import Metrics

SMALL = DriftParams(reference=60, difference=0.6)
MODEL = "c3po@champion"


async def served() -> Episode:
    """An episode of an answer by the champion."""
    parts = Parts(proxies={"v1": Model(searching)}, champion=Registry("v1"), models=(MODEL, "standard"))
    async with parts.client() as client:
        assert (await ask(client, model=MODEL)).json()["dragoman"]["policy"] == "v1"
        assert (await ask(client, model="standard")).status_code == 200
    first, other = parts.episodes
    assert (first.system, other.system) == (MODEL, "standard")
    return first


def asked(episode: Episode, question: str, number: int, system: str = MODEL) -> Episode:
    changes = {"key": f"k{number}", "question": {"id": f"k{number}", "question": question}, "system": system}
    return episode.model_copy(update=changes)


def feed(folder: Path, questions: list[str], episode: Episode, metrics: Metrics, start: int = 0) -> None:
    with drift_watcher(folder, MODEL, SMALL, None, metrics) as watch:
        for number, question in enumerate(questions, start=start):
            watch(asked(episode, question, number))
            watch(asked(episode, "Which other model?", number, "standard"))
            watch(Feedback(id=f"k{number}", rating="up", at=0.0))


async def test_two_kinds_of_questions_give_an_alarm_in_metrics_file_command_and_report_table(tmp_path):
    rng, episode, kept, metrics = random.Random(0), await served(), tmp_path / "kept", Metrics()
    kept.mkdir()
    first = [rng.choice(["What is the capital of Brisa?", "Which river is in Jorvik?"]) for _ in range(60)]
    second = [
        rng.choice(["Who found it?", "When did she write the book of the two towns?"]) for _ in range(SMALL.window)
    ]
    feed(kept, first, episode, metrics)
    project = Project(tmp_path, Params().changed({"serve.episodes": str(kept)}, origin="test"), track=False)
    steady = await stage.run(project, stage.Options())
    assert steady["alarm"] is None and steady["answers"] == 60 and steady["policy"] == "v1"
    feed(kept, second, episode, metrics, start=60)  # after a restart
    value = metrics.registry.get_sample_value
    assert value("dragoman_drift_windows_total", {"measure": "kind", "outcome": "alarm"}) == 1
    assert value("dragoman_drift_windows_total", {"measure": "rating", "outcome": "same"}) == 1
    assert value("dragoman_drift_p", {"measure": "kind"}) < 0.001 < value("dragoman_drift_psi", {"measure": "kind"})
    assert value("dragoman_drift_p", {"measure": "strategy"}) == 1
    found = await stage.run(project, stage.Options())
    assert found["alarm"]["measure"] == "kind" and found["measures"]["kind"]["alarms"] == 1
    assert "**Drift**, first in kind." in (tmp_path / "results" / "drift" / "table.md").read_text()
    text = (kept / "drift.json").read_text()
    assert "Brisa" not in text and "book" not in text


async def test_feedback_counts_once_and_for_known_answers_alone(tmp_path):
    episode = await served()
    with drift_watcher(tmp_path, MODEL, SMALL, None, Metrics()) as watch:
        watch(asked(episode, "Who?", 1))
        for id in ("k1", "k1", "k2"):
            watch(Feedback(id=id, rating="down", passages=["salt"], at=0.0))
    series = Drift.read(tmp_path / "drift.json").traffic[0].series
    assert series["rating"].reference == ["down"] and series["recall"].reference == [0.0]


async def test_a_comment_alone_does_not_take_the_place_of_a_rating(tmp_path):
    episode = await served()
    with drift_watcher(tmp_path, MODEL, SMALL, None, Metrics()) as watch:
        watch(asked(episode, "Who?", 1))
        watch(Feedback(id="k1", comment="hm", at=0.0))
        watch(Feedback(id="k1", comment="hm", rating="down", at=1.0))
    assert Drift.read(tmp_path / "drift.json").traffic[0].series["rating"].reference == ["down"]


@pytest.mark.parametrize("there", [False, True])
async def test_without_traffic_the_command_says_what_is_missing(tmp_path, there):
    project = Project(tmp_path, track=False)
    with pytest.raises(UserError, match="names no folder"):
        await stage.run(project, stage.Options())
    if there:
        (tmp_path / "drift.json").write_text("{}")
    with pytest.raises(UserError, match="no champion has been served yet" if there else "no such file"):
        await stage.run(project, stage.Options(episodes=tmp_path))

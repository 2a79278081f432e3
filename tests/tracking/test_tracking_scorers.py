"""Scores on traces are those of the project's own report; questions are registered once; nothing here fails an evaluation."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from pathlib import Path

import mlflow
import pytest
from fakes import ListRetriever, ScriptedEngine
from mlflow.genai import datasets
from mlflow.genai.evaluation import harness

from dragoman import tracking
from dragoman.core.errors import EngineFault
from dragoman.core.types import Passage, Question
from dragoman.evaluation.metrics import prediction, summarize
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.systems import build
from dragoman.tracking import scorers

PASSAGES = [Passage("bhutan", "Bhutan", "the money of Bhutan"), Passage("nepal", "Nepal", "the money of Nepal")]
QUESTIONS = [
    Question("right", "money of Bhutan", ("ngultrum",), supporting_ids=("bhutan",)),
    Question("half", "money of Nepal", ("rupee",), supporting_ids=("nepal", "gone")),  # one of two can be found
    Question("both", "money of Bhutan and of Nepal", ("ngultrum, rupee",), parts=(("ngultrum",), ("rupee",))),
    Question("fault", "money of nobody", ("x",), supporting_ids=("bhutan",)),
]
SAID = {"money of Bhutan and": "rupee and ngultrum", "money of Bhutan": "the ngultrum", "money of Nepal": "a coin"}


@pytest.fixture
async def episodes(tmp_path) -> list[Episode]:
    def say(prompt: str, rng: object) -> str:
        asked = prompt.rpartition("Question: ")[2]
        if "nobody" in asked:
            raise EngineFault("out of memory")
        return next(said for key, said in SAID.items() if key in asked)

    engine = ScriptedEngine(say)
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(PASSAGES))
    with EpisodeStore(tmp_path / "episodes") as store:
        return await roll_out(QUESTIONS, "standard", build("standard", {"k": 1}), backends, store)


@pytest.fixture
def store(tmp_path, empty_store) -> Path:
    folder = shutil.copytree(empty_store, tmp_path / "mlruns")
    tracking.start(folder)
    return folder


def log(store: Path, episodes: list[Episode], dataset: str = "lands", *, assessed: bool = True) -> mlflow.entities.Run:
    rows = [prediction(episode, "standard") for episode in episodes]
    summary = summarize(rows, dataset=dataset, seed=0, resamples=100)["systems"]["standard"]
    with tracking.grouped("bench", "one", store, tags={}, parameters={}, assessed=assessed):
        run = tracking.log_evaluation(dataset, "standard", summary, rows, episodes, parameters={}, traces=1)
    return mlflow.get_run(run)


def registered() -> list[datasets.EvaluationDataset]:
    return datasets.search_datasets(filter_string="name LIKE '%'")


def test_scores_on_traces_are_those_of_the_report_and_no_question_is_asked_again(store, episodes, monkeypatch, capsys):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it went to the network"))
    run = log(store, episodes)
    printed = capsys.readouterr()
    assert printed.out == "" and "Evaluating" not in printed.err  # the command's own table and bars stand there alone
    assert harness.tqdm is not None and "MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT" not in os.environ  # as they were
    # cover-EM 1, 0 and 1 of three; the recall 1 and 0.5 of two: of a fault there is no score
    assert run.data.metrics["cover_em/mean"] == pytest.approx(2 / 3)
    assert run.data.metrics["cover_em.mean"] == 0.6667
    assert run.data.metrics["recall/mean"] == 0.75 == run.data.metrics["recall.mean"]
    assert run.data.metrics["f1/mean"] == pytest.approx(run.data.metrics["f1.mean"], abs=1e-4)
    traces = mlflow.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, return_type="list")
    by_id = {trace.data.spans[0].attributes["question_id"]: trace for trace in traces}
    assert len(traces) == 4 and {id: len(trace.data.spans) for id, trace in by_id.items()} == {
        "right": 3,  # that of the question, the search and the answer: the one trace that is kept whole
        "half": 1,
        "both": 1,
        "fault": 1,
    }
    said = {a.name: a for a in by_id["half"].info.assessments}
    assert {name: a.feedback.value for name, a in said.items() if a.feedback} == {"cover_em": 0, "f1": 0, "recall": 0.5}
    assert said["answers"].expectation.value == ["rupee"] and said["cover_em"].source.source_type == "CODE"
    assert not any(a.feedback for a in by_id["fault"].info.assessments)


@pytest.mark.slow
def test_the_questions_are_registered_once_and_other_questions_are_another_set(store, episodes):
    first, second = log(store, episodes), log(store, episodes)
    (made,) = registered()
    assert len(made.to_df()) == 4 and made.name.startswith("lands ")
    assert (
        made.to_df()
        .set_index("dataset_record_id")["inputs"]
        .map(lambda given: given["id"])
        .isin(["right", "half", "both", "fault"])
        .all()
    )
    for run in (first, second):
        assert made.name in {given.dataset.name for given in run.inputs.dataset_inputs}
    log(store, episodes[:2])
    assert sorted(len(found.to_df()) for found in registered()) == [2, 4]


@pytest.mark.slow
def test_a_set_that_a_kill_left_without_its_questions_is_filled(store, episodes, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(datasets.EvaluationDataset, "merge_records", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            scorers.register_questions("lands", episodes, tracking.store.experiment_of(store))
    log(store, episodes)
    (made,) = registered()
    assert len(made.to_df()) == 4


def test_what_mlflow_cannot_do_is_a_warning_and_the_run_has_its_figures(store, episodes, monkeypatch, caplog):
    def broken(**_: object) -> None:
        raise mlflow.MlflowException("database is locked")

    monkeypatch.setattr(mlflow.genai, "evaluate", broken)
    with caplog.at_level(logging.WARNING):
        run = log(store, episodes)
    assert "standard on lands: its answers have no scores on their traces in MLflow: database is locked" in caplog.text
    assert run.info.status == "FINISHED" and run.data.metrics["cover_em.mean"] == 0.6667


def test_without_them_only_the_first_questions_have_traces(store, episodes):
    run = log(store, episodes, assessed=False)
    tracking.finish()
    traces = mlflow.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, return_type="list")
    assert len(traces) == 1 and not traces[0].info.assessments and not registered()

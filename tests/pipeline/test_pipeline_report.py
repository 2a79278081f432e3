"""The report of what has been evaluated."""

import json
import shutil
from pathlib import Path

import pytest

from dragoman.config import Params
from dragoman.core.errors import UserError
from dragoman.evaluation.metrics import summarize
from dragoman.evaluation.report import markdown
from dragoman.pipeline import report
from dragoman.pipeline.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that compares two systems, of which one has been evaluated."""
    evaluated(tmp_path / "results", cover_em=1.0)
    return Project(root=tmp_path, params=Params(evaluated=("direct", "standard")))


def evaluated(results: Path, *, cover_em: float, question: str = "Who?") -> None:
    """An evaluation of one question by one system."""
    folder = results / "evaluate" / "atlas-direct"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    row = {"id": "q1", "system": "direct", "scores": {"em": 1.0, "cover_em": cover_em, "f1": 1.0, "recall": 0.0}}
    row |= {
        "question": question,
        "stop": "answered",
        "calls": 1,
        "searches": 0,
        "tokens": 9,
        "seconds": 0.1,
        "started": 0.0,
        "depth": 0,
        "strategy": None,
        "error": "",
    }
    (folder / "predictions.jsonl").write_text(json.dumps(row) + "\n")


async def test_a_report_so_far_has_the_systems_that_were_evaluated(project):
    metrics = await report.run(project, report.Options(so_far=True))
    assert list(metrics["atlas"]["systems"]) == ["direct"]


async def test_a_report_of_nothing_is_refused(project):
    shutil.rmtree(project.results("evaluate"))
    with pytest.raises(UserError, match="nothing has been evaluated on atlas yet"):
        await report.run(project, report.Options(so_far=True))


async def test_a_report_without_so_far_needs_every_system(project):
    with pytest.raises(UserError, match=r"atlas-standard/predictions.jsonl: no such file \(1 of 2 systems .*--so-far"):
        await report.run(project, report.Options())


async def test_a_pooled_report_counts_the_questions_of_all_runs(project, tmp_path):
    evaluated(tmp_path / "other/results", cover_em=0.0, question="Where?")
    (metrics,) = (await report.run(project, report.Options(so_far=True, pool=(tmp_path / "other/results",)))).values()
    assert metrics["dataset"] == "atlas" and metrics["runs"] == 2 and metrics["n"] == 2
    assert markdown(metrics).startswith("atlas, n = 2, 2 runs pooled, the first of seed 0;")
    assert metrics["systems"]["direct"]["cover_em"]["mean"] == 0.5


async def test_a_question_that_several_runs_share_counts_once_by_its_mean(project, tmp_path):
    evaluated(tmp_path / "other/results", cover_em=0.0)
    (metrics,) = (await report.run(project, report.Options(so_far=True, pool=(tmp_path / "other/results",)))).values()
    assert metrics["n"] == 1 and metrics["systems"]["direct"]["cover_em"] == {"mean": 0.5, "low": 0.5, "high": 0.5}


async def test_a_pooled_run_that_has_no_evaluation_is_named(project, tmp_path):
    with pytest.raises(UserError, match="elsewhere/evaluate/atlas-direct"):
        await report.run(project, report.Options(so_far=True, pool=(tmp_path / "elsewhere",)))


def evaluation(folder: Path, dataset: str, **scores: float) -> Path:
    """What `evaluate --out` leaves of one question, with the score of each system."""
    for system, score in scores.items():
        evaluated(folder / system, cover_em=score, question=f"Who, of {dataset}?")
    rows = [
        json.loads((folder / system / "evaluate/atlas-direct/predictions.jsonl").read_text()) | {"system": system}
        for system in scores
    ]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.json").write_text(json.dumps(summarize(rows, dataset=dataset, seed=0, resamples=10)))
    return folder


async def test_data_sets_that_are_joined_stand_alone_and_together(project, tmp_path):
    parts = (
        evaluation(tmp_path / "a", "hotpotqa", direct=1.0, standard=0.0),
        evaluation(tmp_path / "b", "2wiki", direct=0.0, standard=0.0),
    )
    metrics = await report.run(project, report.Options(joined=parts, out=tmp_path / "out"))
    assert list(metrics) == ["hotpotqa", "2wiki", "hotpotqa + 2wiki"]
    assert [one["systems"]["direct"]["cover_em"]["mean"] for one in metrics.values()] == [1.0, 0.0, 0.5]
    assert metrics["hotpotqa + 2wiki"]["n"] == 2
    assert metrics["hotpotqa + 2wiki"]["paired"]["standard - direct"]["cover_em"]["mean"] == -0.5
    assert "hotpotqa + 2wiki, n = 2, seed 0;" in (tmp_path / "out/table.md").read_text()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (None, "b/metrics.json: no such file; `dragoman evaluate --out"),
        ({"dataset": "hotpotqa", "direct": 1.0}, "b/metrics.json: hotpotqa is there already"),
        ({"dataset": "2wiki", "direct": 1.0, "ircot": 1.0}, "b: has ircot, which another one lacks"),
    ],
)
async def test_data_sets_that_cannot_be_joined_are_refused_by_folder(project, tmp_path, second, message):
    first = evaluation(tmp_path / "a", "hotpotqa", direct=1.0)
    if second is not None:
        evaluation(tmp_path / "b", **second)
    with pytest.raises(UserError, match=message):
        await report.run(project, report.Options(joined=(first, tmp_path / "b")))


@pytest.mark.parametrize(
    "text", ['{"cells": [], "datasets": {}}', "[1]", '{"dataset": "hotpot', '{"dataset": {}, "systems": {}}']
)
async def test_a_folder_of_another_command_is_not_joined_but_named(project, tmp_path, text):
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(UserError, match=r"metrics\.json: not the figures of an evaluation; name a folder"):
        await report.run(project, report.Options(joined=(tmp_path,)))


async def test_one_folder_that_is_joined_with_none_is_its_own_report(project, tmp_path):
    (metrics,) = (
        await report.run(project, report.Options(joined=(evaluation(tmp_path / "a", "hotpotqa", direct=1.0),)))
    ).values()
    assert (metrics["dataset"], metrics["n"]) == ("hotpotqa", 1)


def ablated(results: Path, **scores: float) -> None:
    """What `evaluate` and `ablate` leave of one question: the trained system's and its variants' scores, by folder."""
    for folder, score in scores.items():
        name = "c3po@own" if folder.startswith("ablations") else folder.partition("-")[2]
        (results / folder).mkdir(parents=True)
        evaluated(results / folder, cover_em=score)
        row = json.loads((results / folder / "evaluate/atlas-direct/predictions.jsonl").read_text()) | {"system": name}
        (results / folder / "predictions.jsonl").write_text(json.dumps(row) + "\n")
        (results / folder / "metrics.json").write_text(json.dumps({"dataset": "atlas", "systems": {}}))


async def test_a_variant_that_is_named_twice_stands_once(project, tmp_path):
    ablated(tmp_path / "results", **{"evaluate/atlas-c3po@sft": 1.0, "ablations/text": 0.0})
    metrics = (await report.run(project, report.Options(ablations=("text", "text"))))["atlas"]
    assert list(metrics["paired"]) == ["text - c3po@sft"]


async def test_each_ablation_stands_against_what_it_was_made_from_under_its_own_name(project, tmp_path):
    trained = {"evaluate/atlas-c3po@sft": 1.0, "evaluate/atlas-c3po@rl": 1.0}
    variants = {"ablations/text": 0.0, "ablations/only-planning": 1.0, "ablations/no-rounds": 1.0}
    ablated(tmp_path / "results", **trained, **variants)
    ablated(tmp_path / "other", **trained, **{"ablations/text": 1.0, "ablations/only-planning": 1.0})
    options = report.Options(ablations=("text", "only-planning", "no-rounds"), out=tmp_path / "out")
    metrics = (await report.run(project, options))["atlas"]
    assert list(metrics["systems"]) == ["c3po@sft", "c3po@rl", "text", "only-planning", "no-rounds"]
    assert {pair: d["cover_em"]["mean"] for pair, d in metrics["paired"].items()} == {
        "text - c3po@sft": -1.0,
        "only-planning - c3po@rl": 0.0,
        "no-rounds - c3po@sft": 0.0,
        "no-rounds - text": 1.0,
    }
    assert "| text - c3po@sft | -1.00" in (tmp_path / "out/table.md").read_text()
    pooled = await report.run(project, report.Options(ablations=("text",), pool=(tmp_path / "other",)))
    assert pooled["atlas"]["paired"]["text - c3po@sft"]["cover_em"]["mean"] == -0.5


async def test_an_ablation_of_other_questions_is_refused(project, tmp_path):
    ablated(tmp_path / "results", **{"evaluate/atlas-c3po@sft": 1.0, "ablations/text": 0.0})
    folder = tmp_path / "results/ablations/text"
    row = json.loads((folder / "predictions.jsonl").read_text())
    (folder / "predictions.jsonl").write_text(json.dumps(row | {"question": "Of another seed?"}) + "\n")
    with pytest.raises(UserError, match="text - c3po@sft: not one question in common"):
        await report.run(project, report.Options(ablations=("text",)))
    (folder / "metrics.json").write_text(json.dumps({"dataset": "hotpotqa", "systems": {}}))
    with pytest.raises(UserError, match=r"text/metrics\.json: of hotpotqa, and train\.dataset is atlas"):
        await report.run(project, report.Options(ablations=("text",)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"joined": (Path("a"),), "pool": (Path("b"),)}, "--pool has no effect beside --joined"),
        ({"joined": (Path("a"),), "ablations": ("text",)}, "--ablations has no effect beside --joined"),
        ({"ablations": ("text",), "so_far": True}, "--so-far has no effect beside --ablations"),
    ],
)
async def test_flags_that_exclude_one_another_are_refused(project, flags, message):
    with pytest.raises(UserError, match=message):
        await report.run(project, report.Options(**flags))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("text", "ablations/text/metrics.json: no such file; `dragoman ablate text` makes it"),
        ("no-cake", "unknown ablation 'no-cake' of c3po"),
    ],
)
async def test_an_ablation_that_is_not_there_is_named_with_its_command(project, variant, message):
    with pytest.raises(UserError, match=message):
        await report.run(project, report.Options(ablations=(variant,)))

"""The report of what has been evaluated."""

import json
from pathlib import Path

import pytest

from dragoman.config import Params
from dragoman.core.errors import UserError
from dragoman.evaluation.report import markdown
from dragoman.pipeline import report
from dragoman.pipeline.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that compares two systems, of which one has been evaluated."""
    evaluated(tmp_path / "results", cover_em=1.0)
    return Project(root=tmp_path, params=Params(evaluated=("direct", "standard")))


def evaluated(results: Path, *, cover_em: float) -> None:
    """An evaluation of one question by one system."""
    folder = results / "evaluate" / "atlas-direct"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    row = {"id": "q1", "system": "direct", "scores": {"em": 1.0, "cover_em": cover_em, "f1": 1.0, "recall": 0.0}}
    row |= {
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


async def test_a_report_without_so_far_needs_every_system(project):
    with pytest.raises(UserError, match="atlas-standard"):
        await report.run(project, report.Options())


async def test_a_pooled_report_counts_the_questions_of_all_runs(project, tmp_path):
    evaluated(tmp_path / "other/results", cover_em=0.0)
    (metrics,) = (await report.run(project, report.Options(so_far=True, pool=(tmp_path / "other/results",)))).values()
    assert metrics["dataset"] == "atlas" and metrics["runs"] == 2 and metrics["n"] == 2
    assert markdown(metrics).startswith("atlas, n = 2, 2 runs pooled, the first of seed 0;")
    assert metrics["systems"]["direct"]["cover_em"]["mean"] == 0.5


async def test_a_pooled_run_that_has_no_evaluation_is_named(project, tmp_path):
    with pytest.raises(UserError, match="elsewhere/evaluate/atlas-direct"):
        await report.run(project, report.Options(so_far=True, pool=(tmp_path / "elsewhere",)))

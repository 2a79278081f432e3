"""An evaluation in shards is the evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import run
from scripted import make_project, open_runtime, predictions, without_times

from dragoman.pipeline import project as pipeline_project
from dragoman.rewards import judge

EVALUATE = ("evaluate", "--no-track", "--systems", "direct,c3po", "--limit", "7")
SYSTEMS = ("direct", "c3po")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(pipeline_project, "open_runtime", open_runtime)
    monkeypatch.chdir(make_project(tmp_path))
    return tmp_path


def evaluate(capsys, of: int, *more: str) -> Path:
    """In so many shards; in none for 0."""
    out = Path(f"in-{of}")
    for shard in range(1, of + 1):
        code, said, err = run(capsys, *EVALUATE, *more, "--out", str(out), "--shard", f"{shard}/{of}")
        assert code == 0 and f"in-{of}/shards/{shard}-of-{of}/metrics.json" in said, err
    code, _, err = run(capsys, *EVALUATE, *more, "--out", str(out), *(["--merge", str(of)] if of else []))
    assert code == 0, err
    return out


def figures(folder: Path) -> dict:
    found = json.loads((folder / "metrics.json").read_text())
    for summary in found["systems"].values():
        summary |= {"seconds": 0, "latency": 0}
    return found


@pytest.mark.parametrize(
    "more", [(), ("--set", "evaluate={judge: true, scores: [answer_words]}")], ids=["usual", "judged"]
)
def test_any_number_of_shards_gives_the_same_episodes_predictions_and_figures(project, capsys, monkeypatch, more):
    async def length(engine, question, answers, answer):
        return float(len(answer) % 2)

    monkeypatch.setattr(judge, "verdict", length)
    whole = evaluate(capsys, 0, *more)
    assert len({row["answer"] for row in predictions(whole)}) > 1
    for of in (1, 3):
        merged = evaluate(capsys, of, *more)
        assert predictions(merged) == predictions(whole)
        assert figures(merged) == figures(whole)
        assert ("judge" in figures(merged)["systems"]["c3po"]) == bool(more)
        for name in SYSTEMS:
            expected = sorted(without_times(whole / "episodes" / name), key=lambda e: e.question["id"])
            assert without_times(merged / "episodes" / name) == expected and len(expected) == 7


def test_a_merge_and_the_whole_command_after_it_run_no_model(project, capsys, monkeypatch):
    merged = evaluate(capsys, 2)
    monkeypatch.setattr("scripted.script", None)
    assert run(capsys, *EVALUATE, "--out", str(merged))[0] == 0
    monkeypatch.setattr(pipeline_project, "open_runtime", None)
    assert run(capsys, *EVALUATE, "--out", str(merged), "--merge", "2")[0] == 0


def test_the_merge_is_the_run_in_mlflow_and_no_shard_is(project, capsys, monkeypatch):
    logged: list[tuple[str, int, int, object]] = []

    def log(dataset, name, summary, rows, episodes, *, parameters, traces):
        logged.append((name, len(rows), len(episodes), parameters["config"]["system"]))

    recorder = SimpleNamespace(start=lambda folder: None, log_evaluation=log, finish=lambda: None)
    monkeypatch.setattr("dragoman.evaluation.evaluate.tracking", recorder)
    command = ("evaluate", "--systems", "direct,c3po", "--out", "x")
    for shard in ("1/2", "2/2"):
        assert run(capsys, *command, "--shard", shard)[0] == 0
    assert not logged
    assert run(capsys, *command, "--merge", "2")[0] == 0
    assert logged == [("direct", 7, 7, "direct"), ("c3po", 7, 7, "c3po")]


def test_a_shard_that_is_missing_or_made_otherwise_is_named_and_nothing_is_merged(project, capsys):
    run(capsys, *EVALUATE, "--out", "x", "--shard", "1/2")
    merge = (*EVALUATE, "--out", "x", "--merge", "2")
    code, _, err = run(capsys, *merge)
    assert code == 2 and "x/shards/2-of-2: not finished" in err and "--shard 2/2" in err
    run(capsys, *EVALUATE, "--out", "x", "--shard", "2/2")
    for more, said in (
        (("--seed", "3"), "1-of-2/episodes/direct: other questions, systems, seeds"),
        (("--systems", "direct,standard"), "1-of-2/episodes/standard: other questions, systems"),
        (("--set", "systems.c3po.max_depth=3"), "1-of-2: its settings differ"),
        (("--set", "evaluate.judge=true"), "1-of-2: its scores differ"),
    ):
        code, _, err = run(capsys, *merge, *more)
        assert code == 2 and said in err, err
    run(capsys, *EVALUATE, "--out", "x", "--shard", "2/2", "--set", "evaluate.scores=[answer_words]")
    code, _, err = run(capsys, *merge)
    assert code == 2 and "2-of-2: its scores differ" in err
    assert not Path("x/metrics.json").exists() and not Path("x/episodes").exists()


@pytest.mark.parametrize("which", [("--shard", "1/2"), ("--merge", "2")])
def test_until_clear_is_refused_for_a_part(project, capsys, which):
    code, _, err = run(capsys, *EVALUATE, "--until-clear", "direct,c3po", *which)
    assert code == 2 and "--until-clear looks at all questions at once" in err

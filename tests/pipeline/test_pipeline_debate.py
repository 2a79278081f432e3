"""Stages `debate` and `label` of MAPS: how wide a search is, what is labelled, and what is drawn again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import dragoman, run
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openai_stub import serving
from towns import make_towns, river_llm

from dragoman import cli
from dragoman.core import files
from dragoman.rollout.samples import read_samples

SNAPSHOTS = Path("results/debate/snapshots.jsonl")
LABEL = ("label", "--set", "label.draws=2", "--no-track")


@pytest.fixture(scope="module")
def llm() -> Iterator[tuple[str, list[dict]]]:
    asked: list[dict] = []
    with river_llm(asked) as url:
        yield url, asked


@pytest.fixture(scope="module")
def debated(tmp_path_factory, llm, tiny_model) -> Path:
    """The towns after a debate: of each question a pool without the river, and one with it."""
    folder = tmp_path_factory.mktemp("towns")
    make_towns(folder, llm[0], tiny_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (["index", "--dataset", "towns"], ["debate", "--no-track"]):
            patch.setattr(sys, "argv", ["dragoman", *line])
            with pytest.raises(SystemExit) as ended:
                cli.main()
                raise SystemExit(0)
            assert not ended.value.code
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch, debated) -> Path:
    shutil.copytree(debated, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows() -> list[dict]:
    return [json.loads(line) for line in SNAPSHOTS.read_text().splitlines()]


def found(row: dict, search: int) -> int:
    return len(row["pool"][search]["passages"])


def test_the_first_questions_are_searched_with_fewer_passages(project, capsys):
    dragoman(capsys, "debate", "--set", "debate.narrow=0.34", "--set", "debate.narrow_k=1", "--no-track")
    assert [found(row, 0) for row in rows() if row["round"] == 0] == [1, 2, 2]


def test_labels_that_were_drawn_are_not_drawn_again(project, capsys, llm):
    before = len(llm[1])
    said = dragoman(capsys, *LABEL)
    assert "3 Insufficient, 3 Sufficient, 0 on which answers differ" in said and len(llm[1]) == before + 6
    answers = project / "results/label/answers.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[:4]) + '{"key": "torn')  # a kill
    assert dragoman(capsys, *LABEL) == said and len(llm[1]) == before + 8
    assert dragoman(capsys, *LABEL) == said and len(llm[1]) == before + 8


def test_no_more_labels_are_kept_than_are_wanted(project, capsys):
    said = dragoman(capsys, *LABEL, "--set", "label.samples=4")
    assert len(read_samples(project / "results/label/samples.parquet")) == 4
    assert "6 snapshots" in said and "0 on which answers differ" in said


def test_an_empty_pool_is_answered_from_memory_and_labelled(project, capsys):
    first = rows()[0]
    files.write(SNAPSHOTS, [{**first, "pool": [{"query": "x", "passages": []}]}])
    assert "1 snapshots: 1 Insufficient" in dragoman(capsys, *LABEL)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda row: {**row, "round": 5}, "snapshots.jsonl:2: snapshot: Value error, round is 5"),
        (lambda row: {"question": row["question"], "round": 0}, "snapshots.jsonl:2: pool: Field required"),
    ],
)
def test_a_line_that_is_no_snapshot_is_named(project, capsys, spoil, message):
    first, second, *rest = rows()
    files.write(SNAPSHOTS, [first, spoil(second), *rest])
    code, _, err = run(capsys, *LABEL)
    assert code == 2 and message in err


def test_labels_of_which_no_answer_could_be_drawn_are_left_to_a_later_try(project, capsys):
    app = FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "m", "root": "/m"}]})
    app.post("/v1/chat/completions")(lambda: JSONResponse({}, 400))
    with serving(app) as url:
        code, _, err = run(capsys, *LABEL, "--set", f"llm.urls=[{url}]")
    assert code == 1 and "error: label: every question met a fault, the first: " in err and "label.draws" not in err


def test_a_pool_over_the_limit_is_named(project, capsys):
    code, _, err = run(capsys, *LABEL, "--set", "maps.max_documents=2")
    assert code == 2 and "question q0, round 1: a pool of 3 passages, and maps.max_documents is 2; raise it" in err

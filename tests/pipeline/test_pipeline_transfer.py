"""A policy out of its domain, with real indexes, and an LLM that answers with the river in its prompt, or knows nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import run
from towns import make_towns, river_llm

from dragoman.core import files
from dragoman.engines.settings import EngineParams
from dragoman.pipeline import evaluate, index, transfer
from dragoman.pipeline.project import Project

TRANSFER = ["--no-track", "--set", "transfer.policy=oracle"]
SYSTEMS = ("standard", "maps@oracle")


@pytest.fixture(scope="module")
def towns(tmp_path_factory, tiny_model) -> Iterator[Path]:
    """A project about towns with its index, in which both systems have been evaluated at home. To copy."""
    folder = tmp_path_factory.mktemp("towns") / "project"
    folder.mkdir()
    with river_llm() as url, river_llm(knows=False) as other, pytest.MonkeyPatch.context() as patch:
        make_towns(folder, url, tiny_model)
        patch.chdir(folder)
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["corpus"]["villages"] = {"source": "corpus.jsonl"}
        params["transfer"] = {"llm": {"engine": "openai", "model": "m", "urls": [other], "structured": "none"}}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        shutil.copytree("data/towns", "data/villages")
        yield folder


@pytest.fixture(scope="module")
def evaluated(towns) -> Path:
    project = Project.load(Path("params.yaml"), track=False)
    asyncio.run(index.run(project, index.Options(dataset="towns", out=project.index("towns"))))
    for system in SYSTEMS:
        out = project.results("evaluate") / f"towns-{system}"
        asyncio.run(evaluate.run(project, evaluate.Options(dataset="towns", systems=(system,), out=out)))
    return towns


@pytest.fixture
def project(evaluated, tmp_path, monkeypatch) -> Path:
    folder = shutil.copytree(evaluated, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def losses(change: str) -> dict[str, float]:
    metrics = json.loads(Path(f"results/transfer/{change}/metrics.json").read_text())["transfer"]
    return {system: scores["cover_em"]["loss"]["mean"] for system, scores in metrics["systems"].items()}


def test_with_an_llm_that_knows_nothing_all_is_lost_that_was_known(project, capsys):
    """At home a search for a town finds its brook and no river; the oracle searches once more, for the brook."""
    code, out, err = run(capsys, "transfer", "llm", *TRANSFER)
    assert code == 0, err
    assert losses("llm") == {"standard": 0.0, "maps@oracle": 1.0}
    assert "| llm | towns | 3 | maps@oracle | 1.00 [1.00, 1.00] | 0.00 [0.00, 0.00] | +100.0 [+100.0, +100.0] |" in out
    assert "maps@oracle - standard" in out  # and the evaluation's own table


def test_another_method_of_retrieval_is_indexed_beside_the_results(project, capsys):
    retriever = [*TRANSFER, "--set", "transfer.retriever=ideal"]
    assert run(capsys, "transfer", "llm", *retriever)[0] == 0
    code, out, err = run(capsys, "transfer", "retriever", *retriever)
    assert code == 0, err
    assert losses("retriever") == {"standard": -1.0, "maps@oracle": 0.0}  # both gold passages are found at once
    assert json.loads(Path("results/transfer/retriever-index/manifest.json").read_text())["method"] == "ideal"
    assert [line.split(" | ")[0] for line in out.splitlines() if "| maps@oracle |" in line][:2] == [
        "| retriever",
        "| llm",
    ]


def test_other_data_and_another_retriever_are_compared_over_other_questions(project, capsys):
    changed = [*TRANSFER, "--set", "transfer.retriever=ideal", "--set", "transfer.data=villages"]
    code, out, err = run(capsys, "transfer", "retriever-data", *changed)
    assert code == 0, err
    assert losses("retriever-data") == {"standard": -1.0, "maps@oracle": 0.0}
    assert "| retriever-data | villages | 3 | standard |" in out and "* |" in out
    assert "+0.0 [+0.0, +0.0] *" in Path("results/transfer/retriever-data/transfer.md").read_text()


def test_a_system_that_was_asked_other_questions_at_home_is_an_error_and_no_empty_table(project, capsys):
    for path in Path("results/evaluate").glob("*/predictions.jsonl"):
        rows = [row | {"question": "Another?"} for _, row in files.read(path)]
        files.write(path, rows)
    code, _, err = run(capsys, "transfer", "llm", *TRANSFER)
    assert code == 2 and "results/evaluate/towns-standard: was asked other questions than now" in err


def test_a_system_that_has_other_settings_than_at_home_is_an_error(project, capsys):
    code, _, err = run(capsys, "transfer", "llm", *TRANSFER, "--set", "maps.max_rounds=2")
    assert code == 2 and "results/evaluate/towns-maps@oracle: was made with another `settings` than now" in err


def test_a_folder_of_ones_own_stands_beside_the_usual_one(project, capsys):
    assert run(capsys, "transfer", "llm", *TRANSFER)[0] == 0
    again = [*TRANSFER, "--set", "evaluate.limit=2", "--out", "results/transfer/of-two"]
    code, out, err = run(capsys, "transfer", "llm", *again)
    assert code == 0, err
    assert "| of-two | towns | 2 | standard |" in out and "| llm | towns | 3 | standard |" in out
    assert "towns, n = 2," in out  # and the evaluation's own table


def test_another_llm_does_not_judge_in_the_place_of_the_one_at_home(tmp_path):
    home, other = Project(tmp_path), EngineParams(engine="transformers", model="other")
    away = transfer._under(home, {"llm": other}).params
    assert (away.llm, away.judge) == (other, home.params.llm)
    judged = home.changed({"judge": {"model": "judge"}})
    assert transfer._under(judged, {"llm": other}).params.judge == judged.params.judge
    assert transfer._under(home, {}).params.judge is None


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ("llm-rhyme", [], "transfer llm-rhyme: unknown change 'rhyme'; name retriever, llm, data"),
        ("data", [], "transfer data: set transfer.data in params.yaml"),
        (
            "data",
            ["transfer.data=towns"],
            "transfer.data: 'towns' is no other dataset under corpus; there are: villages",
        ),
        (
            "llm",
            ["transfer.beside=direct"],
            "towns-direct: direct has not been evaluated in domain; run `dragoman eval",
        ),
        ("retriever", ["transfer.retriever=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_carried_over_is_named(project, capsys, change, settings, sentence):
    settings = [text.replace("=direct", "=[direct]") for text in settings]
    code, _, err = run(capsys, "transfer", change, *TRANSFER, *(a for text in settings for a in ("--set", text)))
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(Path("results").glob("transfer/*/metrics.json"))

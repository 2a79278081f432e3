"""What an evaluation says of itself: what its systems ran on, and answers that read alike."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.evaluation.evaluate import Answers, Evaluation, merge, report
from dragoman.evaluation.report import markdown
from dragoman.evaluation.settings import EvaluateParams

LLM = "org/llm@http://a/v1#0a1b/none"
PROXY = "small@http://b/v1#r1"
INDEX = "bm25+rm3-0123456789abcdef"
FOLDER = "sha256:0a1b"


def row(id: str, system: str, answer: str | None) -> dict[str, Any]:
    scored = dict.fromkeys(("cover_em", "em", "f1", "precision", "recall", "all_gold_recall"), 0.0)
    return {
        "id": id, "system": system, "question": f"{id}?", "answer": answer, "scores": scored, "calls": 1, "searches": 0,
        "tokens": 9, "started": 0.0, "seconds": 0.1, "stop": "answered", "strategy": None, "depth": 0, "error": "",
    }  # fmt: skip


def reported(out: Path, configs: dict[str, dict[str, Any]], *answers: str | None) -> dict[str, Any]:
    """The metrics of systems that ran with these configurations, and all answered alike."""
    episodes = {name: [SimpleNamespace(config=config)] for name, config in configs.items()}
    rows = [row(f"q{i}", name, answer) for name in configs for i, answer in enumerate(answers or ("a", "b"))]
    evaluation = Evaluation(dataset="d", settings=EvaluateParams(bootstrap=100), seed=0, out=out, track=None)
    return report(Answers(episodes, rows, None), evaluation)  # type: ignore[arg-type]


def test_the_table_of_an_evaluation_names_llm_proxy_and_index(tmp_path):
    configs = {
        "direct": {"llm": LLM, "proxy": None, "retriever": INDEX},
        "c3po": {"llm": LLM, "proxy": PROXY, "retriever": INDEX},
        "c3po@oracle": {"llm": LLM, "proxy": LLM, "retriever": INDEX},
    }
    metrics = reported(tmp_path, configs)
    assert metrics["backends"] == {"llm": "org/llm", "proxy": "small", "index": "bm25+rm3"}
    table = (tmp_path / "table.md").read_text()
    assert table.startswith(
        "d, n = 2, seed 0; 95% bootstrap intervals; LLM org/llm, proxy small, index bm25+rm3\n\n| system |"
    )


@pytest.mark.parametrize("unknown", [FOLDER, None])
def test_a_model_of_a_folder_has_no_name_in_a_table(tmp_path, unknown):
    metrics = reported(tmp_path, {"c3po": {"llm": unknown, "proxy": unknown, "retriever": "list"}})
    assert "backends" not in metrics
    assert markdown(metrics).splitlines()[0] == "d, n = 2, seed 0; 95% bootstrap intervals"


def test_merged_evaluations_name_what_all_of_them_ran_on(tmp_path):
    other = LLM.replace("org/llm", "large")
    reported(tmp_path / "a", {"direct": {"llm": LLM, "proxy": None, "retriever": INDEX}})
    reported(tmp_path / "b", {"c3po": {"llm": LLM, "proxy": PROXY, "retriever": "list"}})
    reported(tmp_path / "c", {"standard": {"llm": other, "proxy": None, "retriever": INDEX}})

    def backends(*names: str) -> Any:
        return merge([[tmp_path / name for name in names]], dataset="d", seed=0, resamples=9).get("backends")

    assert backends("a", "b") == {"llm": "org/llm", "proxy": "small"}
    assert backends("a", "c") == {"llm": "large and org/llm", "index": "bm25+rm3"}
    (tmp_path / "a/metrics.json").write_text(json.dumps({"dataset": "d"}))  # as it was before
    assert backends("a") is None


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        (["<think>", "<think> ", "<think>", "x", None], "direct: of 4 answers 3 read alike: `<think>`."),
        (["", " ", "x"], "direct: of 3 answers 2 are empty."),
        (["a `b`\nc" + "d" * 90, *["a `b`\nc" + "d" * 90]], f"read alike: `a 'b' c{'d' * 53}`."),
    ],
)
def test_a_table_says_which_system_answers_most_questions_alike(tmp_path, answers, line):
    metrics = reported(tmp_path, {"direct": {}}, *answers)
    assert line in markdown(metrics)
    assert line in markdown(merge([[tmp_path]], dataset="d", seed=0, resamples=9))


@pytest.mark.parametrize("answers", [["a", "a", "b", "c"], ["a"], [None, None]])
def test_answers_of_which_no_more_than_half_read_alike_are_not_named(tmp_path, answers):
    metrics = reported(tmp_path, {"direct": {}}, *answers)
    assert "alike" not in metrics and "alike" not in markdown(metrics)

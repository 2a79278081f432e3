"""A judge of its own, from `params.yaml` to the table, beside a server of the frozen LLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run
from fastapi import FastAPI
from openai_stub import serving

from dragoman.core import files
from dragoman.rollout.store import read_episodes

PARAMS = """
datasets: [towns]
corpus: {{towns: {{source: corpus.jsonl}}}}
train: {{system: standard, dataset: towns, reward: judge}}
llm: {{engine: openai, model: m, urls: ["{llm}"], structured: none}}
evaluate: {{judge: true, scores: ["nuggets(draws=1)"], bootstrap: 100}}
"""
QUESTIONS = [{"id": f"q{i}", "question": f"Where does Town {i} lie?", "answers": ["on Alder"]} for i in range(2)]


def server(name: str, says) -> FastAPI:
    """Serves a model that says one thing to every prompt."""
    app = FastAPI()
    app.state.asked = []

    @app.get("/v1/models")
    async def models() -> dict:
        return {"data": [{"id": name, "root": f"/{name}"}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict) -> dict:
        app.state.asked.append(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": says(app.state.asked[-1])}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {"model": name, "choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}

    return app


@pytest.fixture
def llm() -> Iterator[tuple[FastAPI, str]]:
    app = server("m", lambda prompt: "on Alder")
    with serving(app) as url:
        yield app, url


@pytest.fixture
def project(tmp_path, monkeypatch, llm, capsys) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text(PARAMS.format(llm=llm[1]))
    towns = [{"id": f"t{i}", "title": f"Town {i}", "text": "It lies on Alder."} for i in range(3)]
    files.write(tmp_path / "data/towns/corpus.jsonl", towns)
    for split in ("train", "test"):
        files.write(tmp_path / f"data/towns/{split}.jsonl", QUESTIONS)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "index", "--dataset", "towns")[0] == 0
    return tmp_path


def judged_by(url: str) -> list[str]:
    return ["--set", "judge.engine=openai", "--set", "judge.model=j", "--set", f"judge.urls=[{url}]",
            "--set", "judge.structured=none", "--set", "judge.retries=0"]  # fmt: skip


def test_it_judges_and_the_llm_answers(project, capsys, llm):
    app, url = llm
    judge = server("j", lambda prompt: "1" if "Write the number" in prompt else "False")
    evaluate = ["evaluate", "--systems", "standard", "--no-track"]
    with serving(judge) as own:
        code, _, err = run(capsys, *evaluate, "--out", "results/own", *judged_by(own))
        assert code == 0, err
        code, _, err = run(capsys, "rollout", "--samples", "1", "--out", "results/rollout", *judged_by(own))
        assert code == 0, err
    metrics = json.loads((project / "results/own/metrics.json").read_text())["systems"]["standard"]
    assert (metrics["cover_em"]["mean"], metrics["judge"]["mean"]) == (1, 0)
    assert metrics["nuggets(draws=1)"]["mean"] == pytest.approx(2 / 3, abs=1e-3)
    assert len(judge.state.asked) == 3 * 2 and not any("Given answer" in prompt for prompt in app.state.asked)
    for episode in read_episodes(project / "results/rollout/episodes.jsonl"):
        assert episode.trajectories[0].rewards["judge"] == 0
        assert episode.config["judge"].startswith(f"j@{own}") and episode.config["llm"].startswith(f"m@{url}")


def test_one_that_does_not_answer_is_named_before_the_first_question(project, capsys, llm):
    with serving(server("j", str)) as gone:
        pass
    code, _, err = run(
        capsys, "evaluate", "--systems", "standard", "--no-track", "--out", "results/it", *judged_by(gone)
    )
    assert code == 1 and gone in err  # nothing is wrong with the input: a later try may pass
    assert llm[0].state.asked == []

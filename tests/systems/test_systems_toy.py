"""The system of another package runs under every command without an edit in src. CONTRIBUTING.md walks through it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command import dragoman, run
from fastapi import FastAPI
from openai_stub import serving

from dragoman.config import load_params
from dragoman.core import files
from dragoman.rollout.store import read_episodes
from dragoman.serving.run import open_service
from dragoman.serving.server import create_app

PACKAGE = Path(__file__).parents[1] / "toy_system"
PARAMS = """
datasets: [toy]
corpus: {{toy: {{source: corpus.jsonl}}}}
evaluated: [direct, toy]
train: {{system: toy, dataset: toy}}
llm: {{engine: openai, model: m, urls: ["{url}"], revision: stub, structured: none}}
proxy: {{engine: transformers, model: "{model}", max_model_len: 512}}
seeds: {{questions: 3, exploration: {{breadth: [1], force: 1}}}}
sft: {{adapter: {{rank: 4, alpha: 8}}, batch_size: 4, micro_batch: 4, epochs: 1, dev_questions: 2}}
rl:
  iterations: 1
  questions: 2
  exploration: {{breadth: [2], force: 1}}
  adapter: {{rank: 4, alpha: 8}}
  critic: head
  batch_size: 4
  dtype: float32
  dev_questions: 2
  dev_every: 1
  guards: {{max_kl: 10}}
evaluate: {{limit: 3, bootstrap: 100, traces: 1}}
serve: {{models: [toy@rl]}}
"""


@pytest.fixture
def installed(tmp_path, monkeypatch) -> None:
    """What `pip install` of the package would leave: its code on the path, and its entry point in its metadata."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / f"toy_system-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["dragoman.systems"]
    lines = [f"{name} = {module}\n" for name, module in points.items()]
    (info / "entry_points.txt").write_text("[dragoman.systems]\n" + "".join(lines))
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.syspath_prepend(PACKAGE)


@pytest.fixture(scope="module")
def llm() -> Iterator[str]:
    """A server of an LLM that knows what stands in the prompt, and nothing else."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(body: dict) -> dict:
        river = re.search(r"lies on (river \d+)", body["messages"][-1]["content"])
        message = {"role": "assistant", "content": river[1] if river else "I do not know"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    with serving(app) as url:
        yield url


@pytest.fixture
def project(tmp_path, monkeypatch, installed, llm, tiny_model) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text(PARAMS.format(url=llm, model=tiny_model))
    towns = [{"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} lies on river {i * 7}."} for i in range(9)]
    files.write(tmp_path / "data/toy/corpus.jsonl", towns)
    asked = [
        {"id": f"q{i}", "question": f"On which river lies town {i}?", "answers": [f"river {i * 7}"], "type": "x"}
        | {"supporting_ids": [f"p{i}"]}
        for i in range(9)
    ]
    for i, split in enumerate(("train", "dev", "test")):
        files.write(tmp_path / f"data/toy/{split}.jsonl", asked[3 * i : 3 * i + 3])
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def answer_of(model: str) -> dict:
    """What `dragoman serve` answers."""
    params = load_params()
    async with open_service(params, params.serve, "data/index/toy", None) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": model, "messages": [{"role": "user", "content": "On which river lies town 4?"}]}
            return (await client.post("/v1/chat/completions", json=body)).json()


def test_a_system_of_another_package_runs_under_every_command(project, capsys):
    dragoman(capsys, "index", "--dataset", "toy")
    shown = dragoman(capsys, "ask", "On which river lies town 4?", "--system", "toy", "--dataset", "toy", "--trace")
    assert "decide decides" in shown
    dragoman(capsys, "rollout", "--tree", "--limit", "2", "--out", "results/rollout")
    episodes = read_episodes(project / "results/rollout/episodes.jsonl")
    assert {node.action["type"] for episode in episodes for node in episode.nodes} == {"Look", "Recall"}
    dragoman(capsys, "seeds", "--no-track")
    for stage in ("sft", "rl"):
        with files.only_writer(project / "results" / stage):
            code, _, err = run(capsys, stage, "--no-track")
        assert code == 2 and f"results/{stage}: process {os.getpid()} is writing there" in err
        dragoman(capsys, stage, "--no-track")
    names = "toy,toy@rl,toy@oracle"
    dragoman(capsys, "evaluate", "--dataset", "toy", "--systems", names, "--out", "results/it", "--no-track")
    scores = json.loads((project / "results/it/metrics.json").read_text())["systems"]
    assert scores["toy@oracle"]["cover_em"]["mean"] == 1.0
    dragoman(capsys, "ablate", "two-passages", "--no-track")
    answered = asyncio.run(answer_of("toy@rl"))
    assert answered["choices"][0]["message"]["content"] in ("river 28", "I do not know")


def test_contributing_shows_the_code_of_the_toy():
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    code = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.*")) if path.suffix in (".py", ".toml", ".txt"))
    written = {line.strip() for line in code.splitlines()}
    blocks = re.findall(r"^ +```\w*\n(.*?)^ +```", text, flags=re.M | re.S)
    assert len(blocks) == 6
    assert not [line for block in blocks for line in block.splitlines() if line.strip() not in written]

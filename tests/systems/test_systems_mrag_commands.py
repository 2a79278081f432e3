"""mRAG under the commands: with a small model, a real index and a server of an LLM that knows what stands in the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import dragoman
from fastapi import FastAPI
from openai_stub import serving

from dragoman.core import files
from dragoman.rollout.store import read_episodes
from dragoman.systems import ablations

BROOKS = ("Alder", "Birk", "Cole", "Dun", "Esk", "Fal", "Gill", "Holm", "Irt")
PARAMS = """
datasets: [towns]
corpus: {{towns: {{source: corpus.jsonl}}}}
train: {{system: mrag, dataset: towns, algorithm: grpo}}
systems:
  mrag: {{decide: marks, max_calls: 5, max_reads: 2, proxy_words: 12, summarizer: false, reasoner: false, reviser: false}}
llm: {{engine: openai, model: m, urls: ["{url}"], structured: none}}
proxy: {{engine: transformers, model: "{model}", max_model_len: 1024}}
seeds: {{questions: 3, exploration: {{oracle: true, noise: 0.2}}}}
sft: {{adapter: {{rank: 4, alpha: 8}}, batch_size: 4, epochs: 1, rounds: 1, visits: 2, dev_questions: 2}}
rl:
  iterations: 1
  questions: 2
  exploration: {{breadth: [1, 2, 1], force: 1}}
  adapter: {{rank: 4, alpha: 8}}
  batch_size: 8
  dtype: float32
  dev_questions: 2
  dev_every: 1
  guards: {{max_kl: 10}}
evaluate: {{limit: 3, bootstrap: 100, traces: 1}}
"""


@pytest.fixture(scope="module")
def llm() -> Iterator[str]:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict:
        return {"data": [{"id": "m", "root": "/m"}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict) -> dict:
        river = re.search(r"flows into (River \d+)", body["messages"][-1]["content"])
        message = {"role": "assistant", "content": river[1] if river else "I do not know"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {"model": "m", "choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}

    with serving(app) as url:
        yield url


@pytest.fixture
def project(tmp_path, monkeypatch, llm, tiny_model) -> Path:
    """Towns on brooks that flow into rivers: two hops."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "cpu.yaml").write_text("{}")
    (tmp_path / "params.yaml").write_text(PARAMS.format(url=llm, model=tiny_model))
    towns = [{"id": f"t{i}", "title": f"Town {i}", "text": f"It lies on {b}."} for i, b in enumerate(BROOKS)]
    brooks = [{"id": f"b{i}", "title": b, "text": f"It flows into River {i + 70}."} for i, b in enumerate(BROOKS)]
    files.write(tmp_path / "data/towns/corpus.jsonl", [*towns, *brooks])
    asked = [
        {"id": f"q{i}", "question": f"Where does the water of Town {i} go?", "answers": [f"River {i + 70}"]}
        | {"supporting_ids": [f"t{i}", f"b{i}"]}
        for i in range(9)
    ]
    for i, split in enumerate(("train", "dev", "test")):
        files.write(tmp_path / f"data/towns/{split}.jsonl", asked[3 * i : 3 * i + 3])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_mrag_is_asked_trained_and_evaluated(project, capsys):
    dragoman(capsys, "index", "--dataset", "towns")
    question = "Where does the water of Town 4 go?"
    shown = dragoman(capsys, "ask", question, "--system", "mrag", "--dataset", "towns", "--trace")
    assert "coordinator decides" in shown and "planner" in shown
    dragoman(capsys, "seeds", "--no-track")
    nodes = [node for episode in read_episodes(project / "results/seeds/episodes.jsonl") for node in episode.nodes]
    assert {node.role for node in nodes} == {"coordinator", "planner", "searcher", "validator"}
    assert all(node.marked and node.marked.right for node in nodes)
    dragoman(capsys, "sft", "--no-track")
    dragoman(capsys, "rl", "--no-track")
    names = "mrag@rl,mrag@oracle"
    dragoman(capsys, "evaluate", "--dataset", "towns", "--systems", names, "--out", "results/it", "--no-track")
    written = ("--set", "mrag.decide=text", "--set", "mrag.answers=guided", "--out", "results/text", "--no-track")
    dragoman(capsys, "evaluate", "--dataset", "towns", "--systems", "mrag@oracle", *written)
    for out in ("results/it", "results/text"):
        scores = json.loads((project / out / "metrics.json").read_text())["systems"]
        assert scores["mrag@oracle"]["recall"]["mean"] == scores["mrag@oracle"]["cover_em"]["mean"] == 1.0
        assert {system["failed"] for system in scores.values()} == {0}


@pytest.mark.slow
def test_every_ablation_is_evaluated_in_a_folder_of_its_own(project, capsys):
    dragoman(capsys, "index", "--dataset", "towns")
    dragoman(capsys, "seeds", "--no-track")
    dragoman(capsys, "sft", "--no-track")
    dragoman(capsys, "rl", "--no-track")
    roles, said = {}, {}
    for variant in ablations("mrag"):
        dragoman(capsys, "ablate", variant, "--no-track")
        (name,) = json.loads((project / f"results/ablations/{variant}/metrics.json").read_text())["systems"]
        (folder,) = (project / f"results/ablations/{variant}/episodes").iterdir()
        episodes = read_episodes(folder / "episodes.jsonl")
        said[variant] = name
        roles[variant] = {node.role for episode in episodes for node in episode.nodes}
        assert len(episodes) == 3 and not any(t.error for episode in episodes for t in episode.trajectories)
    assert said == {
        "no-validator": "mrag@rl",
        "no-planner": "mrag@rl",
        "single-agent": "mrag@results/ablations/single-agent/warm-up/sft",
        "no-rl": "mrag@sft",
        "no-training": "mrag",
    }
    assert "validator" not in roles["no-validator"] and "planner" not in roles["no-planner"]
    assert roles["single-agent"] == {"coordinator"}

"""Towns on brooks that flow into rivers, which takes two searches to find out, and an LLM that knows what stands in its prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI
from openai_stub import serving

from dragoman.core import files

BROOKS = ("Alder", "Birk", "Cole", "Dun", "Esk", "Fal", "Gill", "Holm", "Irt")
PARAMS = """
datasets: [towns]
corpus: {{towns: {{source: corpus.jsonl}}}}
train: {{system: maps, dataset: towns, algorithm: grpo}}
systems: {{maps: {{decide: marks, k: 2, max_rounds: 1, proxy_words: 12}}}}
llm: {{engine: openai, model: m, urls: ["{url}"], structured: none}}
proxy: {{engine: transformers, model: "{model}", max_model_len: 1024}}
seeds: {{questions: 3, exploration: {{oracle: true, noise: 0.2, answers: false}}}}
sft: {{adapter: {{rank: 4, alpha: 8}}, batch_size: 4, epochs: 1, rounds: 1, visits: 2, dev_questions: 2}}
rl:
  iterations: 1
  questions: 2
  exploration: {{breadth: [2], force: 1}}
  adapter: {{rank: 4, alpha: 8}}
  batch_size: 4
  dtype: float32
  dev_questions: 2
  dev_every: 1
  guards: {{max_kl: 10}}
evaluate: {{limit: 3, bootstrap: 100, traces: 1}}
"""


@contextmanager
def river_llm(asked: list[dict] | None = None, *, knows: bool = True) -> Iterator[str]:
    """The URL of an LLM that answers with the river in its prompt, or that it does not know. As a judge it says False.

    What it is asked is added to `asked`.
    """
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict:
        return {"data": [{"id": "m", "root": "/m"}]}

    @app.post("/v1/chat/completions")
    async def chat(body: dict) -> dict:
        if asked is not None:
            asked.append(body)
        prompt = body["messages"][-1]["content"]
        river = re.search(r"flows into (River \d+)", prompt) if knows else None
        said = "False" if prompt.endswith("True or False?") else river[1] if river else "I do not know"
        message = {"role": "assistant", "content": said}
        n = body.get("n") or 1
        choices = [{"index": i, "message": message, "finish_reason": "stop"} for i in range(n)]
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        return {"model": "m", "choices": choices, "usage": usage}

    with serving(app) as url:
        yield url


def make_towns(folder: Path, url: str, model: Path) -> None:
    """Write a project about the towns, without an index."""
    (folder / "conf").mkdir()
    (folder / "conf" / "cpu.yaml").write_text("{}")
    (folder / "params.yaml").write_text(PARAMS.format(url=url, model=model))
    passages = [
        passage
        for i, brook in enumerate(BROOKS)
        for passage in (
            {"id": f"t{i}", "title": f"Town {i}", "text": f"The town lies on {brook}."},
            {"id": f"b{i}", "title": brook, "text": f"It flows into River {i + 70}."},
        )
    ]
    files.write(folder / "data/towns/corpus.jsonl", passages)
    asked = [
        {"id": f"q{i}", "question": f"Where does the water of Town {i} go?", "answers": [f"River {i + 70}"]}
        | {"supporting_ids": [f"t{i}", f"b{i}"]}
        for i in range(9)
    ]
    for i, split in enumerate(("train", "dev", "test")):
        files.write(folder / f"data/towns/{split}.jsonl", asked[3 * i : 3 * i + 3])

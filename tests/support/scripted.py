"""The command line with scripted models behind it, in this process or as a program: `python scripted.py rollout ...`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes import ListRetriever, ScriptedEngine

from dragoman import cli, runtime
from dragoman.core import files
from dragoman.core.types import Passage
from dragoman.pipeline import bench, project
from dragoman.rollout.backends import Backends
from dragoman.rollout.record import Episode
from dragoman.rollout.store import read_episodes
from dragoman.systems import build

PARAMS = """
profile: scripted
systems: {c3po: {max_depth: 2}}
seeds: {min_credit: 0, first: all}
rl: {exploration: {breadth: [1, 2, 1]}}
"""


def script(prompt: str, rng: Any) -> str:
    """A proxy and an LLM that draw lots, so that another seed or another question gives another tree."""
    time.sleep(float(os.environ.get("SCRIPTED_SECONDS", "0")))  # for who wants to kill it meanwhile
    if "Choose one action" in prompt:
        forced = {"\\[No": "[No Retrieval]", "\\[Pl": "[Planning]", "\\[Re": "[Retrieval] number"}
        return forced.get(prompt[:4]) or rng.choice([*forced.values()])
    if "Facts so far" in prompt:
        return rng.choice(["Action: [LLM]", f"Action: [Retrieval] number {rng.randrange(9)}"])
    return rng.choice(["Action: [1]", "Action: []"]) if "Write the numbers" in prompt else f"answer {rng.randrange(3)}"


@asynccontextmanager
async def open_runtime(
    params: Any, index: str, corpus: Any = None, registry: Any = None, *, cache: bool = False
) -> AsyncIterator[Any]:
    retriever = ListRetriever([Passage("p", "P", "number")])

    def open(name: str, *_: Any, **__: Any) -> tuple[Any, Backends]:
        engine = ScriptedEngine(script)
        system = build(name, params.system_settings(name))
        return system, Backends(llm=engine, proxy=engine, retriever=retriever)

    yield SimpleNamespace(open=open, open_sampler=open, retriever=retriever, answers=None)


def open_checked(_: Any) -> ScriptedEngine:
    """The engine of any settings, for those who open what a system runs in by themselves."""
    return ScriptedEngine(script)


def make_project(folder: Path, questions: int = 7) -> Path:
    """What commands that put questions to systems look for."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "scripted.yaml").write_text("{}")
    (folder / "params.yaml").write_text(PARAMS)
    data = folder / "data" / "atlas"
    data.mkdir(parents=True)
    (data / "corpus.jsonl").write_text(json.dumps({"id": "p", "title": "P", "text": "number"}) + "\n")
    rows = [{"id": f"q{i}", "question": f"what is {i}?", "answers": [f"answer {i % 3}"]} for i in range(questions)]
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def without_times(folder: Path) -> list[Episode]:
    """The episodes of a folder, in their order, as they would be if nothing took any time."""
    times = {"started": 0.0, "seconds": 0.0}

    def still(parts: list[Any]) -> list[Any]:
        return [part.model_copy(update=times) for part in parts]

    return [
        e.model_copy(update={**times, "nodes": still(e.nodes), "calls": still(e.calls)})
        for e in read_episodes(folder / "episodes.jsonl")
    ]


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Those of an evaluation, likewise."""
    return [row | {"started": 0, "seconds": 0} for _, row in files.read(folder / "predictions.jsonl")]


if __name__ == "__main__":
    project.open_runtime = open_runtime
    runtime.open_checked = bench.open_checked = open_checked
    sys.argv[0] = "dragoman"
    cli.main()

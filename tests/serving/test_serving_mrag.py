"""A policy of mRAG is registered, promoted and served as `mrag@champion`; without one, standard RAG answers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from serving_parts import PASSAGES, QUESTION
from tiny import make_tiny

from dragoman.config import load_params
from dragoman.engines import POOL
from dragoman.engines.settings import EngineParams
from dragoman.registry.policy import SHARED, PolicySet, publish
from dragoman.registry.trained_with import trained_with
from dragoman.registry.versions import Registry
from dragoman.serving.champion import RegistryChampion
from dragoman.serving.run import open_service
from dragoman.serving.server import create_app
from dragoman.serving.settings import ServeParams
from dragoman.systems import build

ROOT = Path(__file__).parents[2]
AGENTS = {"decide": "marks", "summarizer": False, "reasoner": False, "reviser": False}
SETTINGS = AGENTS | {"k": 1, "max_calls": 4, "max_reads": 1, "proxy_words": 10, "answer_tokens": 8}


def policy_of(folder: Path, seed: int) -> PolicySet:
    """Random weights for all agents, as a stage leaves them."""
    manifest = {"stage": "rl", "system": "mrag", "trained_with": trained_with(build("mrag", SETTINGS))}
    return publish({SHARED: make_tiny(folder / "made" / str(seed), seed=seed)}, folder / "results" / "rl", manifest)


@pytest.fixture
def registry(tmp_path, empty_store) -> Registry:
    shutil.copytree(empty_store, tmp_path / "mlruns")
    return Registry(tmp_path / "mlruns", tmp_path / "results")


@asynccontextmanager
async def client(tmp_path: Path, tiny_model: Path, registry: Registry, **settings) -> AsyncIterator[httpx.AsyncClient]:
    """One of the endpoint, which follows the champion."""
    from dragoman.retrieval import build_index

    build_index(PASSAGES, tmp_path / "index")
    engine = EngineParams(engine="transformers", model=str(tiny_model), max_model_len=2048)
    serve = ServeParams(models=("mrag@champion",), champion_poll_s=0.05)
    systems = {"mrag": SETTINGS | settings, "standard": {"answer_tokens": 4}}
    params = load_params(ROOT / "params.yaml").model_copy(
        update={"llm": engine, "proxy": engine, "systems": systems, "serve": serve}
    )
    async with open_service(params, serve, str(tmp_path / "index"), RegistryChampion(registry), registry) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
            yield opened


async def asked(opened: httpx.AsyncClient) -> dict:
    body = {"model": "mrag@champion", "messages": [{"role": "user", "content": QUESTION}]}
    answer = await opened.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_champion_is_served_and_so_is_the_next_one(tmp_path, tiny_model, registry):
    first = registry.register(policy_of(tmp_path, 1))
    assert first.system == "mrag"
    registry.promote(first, None)
    async with client(tmp_path, tiny_model, registry) as opened:
        answer = await asked(opened)
        assert answer["dragoman"]["degraded"] is None and answer["dragoman"]["policy"] == first.policy
        assert answer["choices"][0]["message"]["content"]
        assert len(POOL) == 2, "one policy for all agents, and the frozen LLM"
        second = registry.register(policy_of(tmp_path, 2))
        registry.promote(second, first)
        shutil.rmtree(tmp_path / "results")  # what is served is the registry's own copy
        while (answer := await asked(opened))["dragoman"]["policy"] == first.policy:
            assert answer["dragoman"]["degraded"] is None
        assert answer["dragoman"]["policy"] == second.policy and answer["dragoman"]["degraded"] is None
    assert len(POOL) == 0


async def test_a_champion_that_was_trained_for_other_agents_is_not_served(tmp_path, tiny_model, registry):
    registry.promote(registry.register(policy_of(tmp_path, 1)), None)
    async with client(tmp_path, tiny_model, registry, validator=False) as opened:
        answer = await asked(opened)
        assert answer["dragoman"]["degraded"] == {"system": "standard", "reason": "unavailable"}

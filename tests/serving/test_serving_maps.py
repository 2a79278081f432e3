"""A policy of MAPS is a set of three. It is registered, promoted and served as `maps@champion`, each agent by its own weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from serving_parts import PASSAGES, QUESTION
from tiny import make_tiny

from dragoman.config import load_params
from dragoman.engines import POOL
from dragoman.engines.settings import EngineParams
from dragoman.registry.policy import PolicySet, publish
from dragoman.registry.trained_with import trained_with
from dragoman.registry.versions import Registry
from dragoman.serving.champion import RegistryChampion
from dragoman.serving.run import open_service
from dragoman.serving.server import create_app
from dragoman.serving.settings import ServeParams
from dragoman.systems import build

ROOT = Path(__file__).parents[2]
SETTINGS = {"answers": "agent", "queries": "span", "k": 1, "max_rounds": 1, "query_tokens": 16, "answer_tokens": 8}


def policy_of(folder: Path, *roles: str) -> PolicySet:
    """Random weights for each of these roles, as a stage leaves them."""
    weights = {role: make_tiny(folder / "made" / role, seed=seed) for seed, role in enumerate(roles, start=1)}
    manifest = {"stage": "sft", "system": "maps", "trained_with": trained_with(build("maps", SETTINGS))}
    return publish(weights, folder / "results" / "judge", manifest)


@pytest.fixture
def registry(tmp_path, empty_store) -> Registry:
    shutil.copytree(empty_store, tmp_path / "mlruns")
    return Registry(tmp_path / "mlruns", tmp_path / "results")


def params_of(tiny_model: Path, **systems: dict):
    engine = EngineParams(engine="transformers", model=str(tiny_model), max_model_len=2048)
    serve = ServeParams(models=("maps@champion",), champion_poll_s=0.05)
    return load_params(ROOT / "params.yaml").model_copy(
        update={"llm": engine, "proxy": engine, "systems": {"maps": SETTINGS} | systems, "serve": serve}
    )


async def test_a_set_of_three_is_promoted_and_served(tmp_path, tiny_model, registry):
    from dragoman.retrieval import build_index

    build_index(PASSAGES, tmp_path / "index")
    policy = policy_of(tmp_path, "query", "judge", "answer")
    version = registry.register(policy)
    assert set(version.roles) == {"query", "judge", "answer"} and version.system == "maps"
    registry.promote(version, None)
    shutil.rmtree(tmp_path / "results")  # what is served is the registry's own copy
    params, index = params_of(tiny_model), str(tmp_path / "index")
    async with open_service(params, params.serve, index, RegistryChampion(registry), registry) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": "maps@champion", "messages": [{"role": "user", "content": QUESTION}]}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer["dragoman"]["degraded"] is None and answer["dragoman"]["policy"] == version.policy
            assert answer["choices"][0]["message"]["content"]
            assert len(POOL) == 4, "three agents, and the frozen LLM of standard RAG"
    assert len(POOL) == 0


async def test_a_set_without_one_of_the_three_is_not_served(tmp_path, tiny_model, registry):
    """Standard RAG answers, and why is in the log."""
    from dragoman.retrieval import build_index

    build_index(PASSAGES, tmp_path / "index")
    registry.promote(registry.register(policy_of(tmp_path, "query", "judge")), None)
    params = params_of(tiny_model, standard={"answer_tokens": 4})
    async with open_service(
        params, params.serve, str(tmp_path / "index"), RegistryChampion(registry), registry
    ) as service:
        transport = httpx.ASGITransport(app=create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"model": "maps@champion", "messages": [{"role": "user", "content": QUESTION}]}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert answer["dragoman"]["degraded"] == {"system": "standard", "reason": "unavailable"}

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_stub import protocol, serving
from tiny import make_tiny

from dragoman.engines.base import Engine
from dragoman.engines.openai import OpenAIEngine
from dragoman.engines.transformers import TransformersEngine


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", tokenizer=smollm2, seed=0, context=512)


@pytest.fixture(scope="session")
def other_tiny(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    return make_tiny(tmp_path_factory.mktemp("other") / "model", tokenizer=smollm2, seed=1, context=512)


@pytest.fixture(scope="session")
def transformers_engine(tiny: Path) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(tiny, dtype="float32", threads=1)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def vllm_engine(tiny: Path) -> Iterator[Engine]:
    pytest.importorskip("vllm", exc_type=ImportError)
    from dragoman.engines.vllm import VllmEngine

    engine = VllmEngine(tiny, dtype="float32", kv_cache_gib=0.1)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def openai_engine(transformers_engine: TransformersEngine) -> Iterator[OpenAIEngine]:
    with serving(protocol(transformers_engine, "tiny")) as url:
        yield OpenAIEngine([url], "tiny", retries=0)


@pytest.fixture(params=["transformers", "openai", pytest.param("vllm", marks=pytest.mark.engine)])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(f"{request.param}_engine")

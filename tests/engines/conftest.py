from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_stub import protocol, serving

from dragoman.engines.base import Engine
from dragoman.engines.openai import OpenAIEngine
from dragoman.engines.transformers import TransformersEngine


def make_tiny(folder: Path, tokenizer: Path, seed: int) -> Path:
    """A random Llama in float32 with a real tokenizer. Its head size is one that vLLM's CPU backend has kernels for."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", smollm2, seed=0)


@pytest.fixture(scope="session")
def other_tiny(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    return make_tiny(tmp_path_factory.mktemp("other") / "model", smollm2, seed=1)


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


@pytest.fixture(params=["transformers", "openai", "vllm"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(f"{request.param}_engine")

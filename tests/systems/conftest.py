from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.engines.base import Engine


@pytest.fixture(scope="session")
def tiny_model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers that knows nothing, with the real tokenizer and chat template."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
async def tiny_engine(tiny_model: Path) -> AsyncIterator[Engine]:
    from dragoman.engines.transformers import TransformersEngine

    engine = TransformersEngine(tiny_model, dtype="float32", threads=2)
    yield engine
    await engine.close()

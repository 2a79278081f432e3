"""A random model that knows nothing, for tests that need a real one but not a good one."""

from __future__ import annotations

from pathlib import Path


def make_tiny(folder: Path, tokenizer: Path, *, seed: int, context: int = 2048, **sizes: int) -> Path:
    """A Llama of two layers in float32 with a real tokenizer. Its head size is one that vLLM's CPU backend has kernels for.

    `sizes` override the configuration's.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    small = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = LlamaConfig(
        **small | sizes,
        vocab_size=49_152,
        max_position_embeddings=context,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder

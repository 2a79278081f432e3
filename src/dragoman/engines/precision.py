"""What this machine computes in: not every processor multiplies bfloat16, and one that does not imitates it slowly."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


def resolved(dtype: Dtype) -> str:
    """A precision by name. `auto` is bfloat16 where this machine has instructions for it, and float32 elsewhere.

    The same settings then give slightly other results on machines of both kinds. Name one where that matters.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if multiplies_bfloat16() else "float32"


def multiplies_bfloat16() -> bool:
    """Whether the device that models run on here has instructions for products of bfloat16."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # What torch itself asks before it hands such a product to oneDNN; AVX2 alone is not enough.
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

"""What this machine computes in: few processors multiply bfloat16 faster than float32."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


def resolved(dtype: Dtype) -> str:
    """A precision by name. `auto` is bfloat16 where this machine is faster by it, and float32 elsewhere.

    The same settings then give slightly other results on machines of both kinds. Name one where that matters.
    """
    if dtype != "auto":
        return dtype
    return "bfloat16" if faster_by_bfloat16() else "float32"


def faster_by_bfloat16() -> bool:
    """Whether the device that models run on here is faster in bfloat16: a GPU that has it, Intel's processors with AMX, AMD's
    with AVX-512's instructions for it (Zen 4 and later).

    On two cores of AMD's Zen 5 standard RAG took 0.6 times as long as in float32, and steps of a warm-up 0.5 times. The same
    instructions are slower on Intel's without AMX: on two cores of Sapphire Rapids standard RAG took 1.4 times as long, and a
    warm-up 1.3 times. With AVX2 alone, where bfloat16 is imitated, it took five times as long.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_bf16") or (has.get("avx512_bf16") and str(has.get("cpu_name")).startswith("AMD")))

"""The one place that turns what was trained into a model folder that engines read.

Weights are written in float32, as they were trained: a policy that is trained again goes on from exactly these. On a
bfloat16 grid a LoRA update of |B| about 4e-4 would keep a seventh to a third of its size. An engine rounds to its own
precision, once, when it reads the folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from dragoman.registry.policy import copy_tokenizer


def export(base: Path, trained: Path, out: Path) -> None:
    """Write a plain model folder in float32: an adapter merged into its base, or the trained weights themselves.

    Args:
        base: the model folder that training started from; its tokenizer is copied.
        trained: what `save_pretrained` wrote: an adapter, or all weights.
        out: appears whole, or not at all.
    """
    from transformers import AutoModelForCausalLM

    adapter = (trained / "adapter_config.json").is_file()
    model: Any = AutoModelForCausalLM.from_pretrained(base if adapter else trained, dtype=torch.float32)
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(trained)).merge_and_unload()
    scratch = out.with_name(f".{out.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    model.save_pretrained(scratch)
    copy_tokenizer(base, scratch)
    scratch.rename(out)

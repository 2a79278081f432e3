"""The one place that turns what was trained into a model folder that engines read.

Weights are written in float32, as they were trained: a policy that is trained again goes on from exactly these. On a
bfloat16 grid a LoRA update of |B| about 4e-4 would keep a seventh to a third of its size. An engine rounds to its own
precision, once, when it reads the folder.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.engines.fetch import FETCH, loading
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
    files.rename_folder(scratch, out)


def truncated(base: Path, layers: int | None, out: Path) -> Path:
    """A model folder with the first `layers` layers of `base` alone, written to `out`; `base` itself where it has no more.

    Raises:
        UserError: there are not so many, or the config of `base` cannot be loaded.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with loading(str(base), "its config cannot be loaded", FETCH):
        config = AutoConfig.from_pretrained(base)
        there = int(config.get_text_config().num_hidden_layers)
    if layers is None or layers == there:
        return base
    if layers > there:
        raise UserError(f"sft.layers is {layers}, and {base} has {there} layers: give at most that")
    if not out.is_dir():
        scratch = out.with_name(f".{out.name}")
        shutil.rmtree(scratch, ignore_errors=True)
        _cut(config.get_text_config(), layers)
        with _layers_left_out():
            model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, config=config)
        model.save_pretrained(scratch)
        copy_tokenizer(base, scratch)
        files.rename_folder(scratch, out)
    return out


def _cut(config: Any, layers: int) -> None:
    """Have a config of fewer layers: some also list a value for each, such as `layer_types` of Qwen's and Gemma's."""
    there = config.num_hidden_layers
    config.num_hidden_layers = layers
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == there:
            setattr(config, name, value[:layers])


@contextmanager
def _layers_left_out() -> Iterator[None]:
    """Without transformers' report of weights that were not expected, unless some are missing, too."""
    reports = logging.getLogger("transformers.modeling_utils")

    def told(record: logging.LogRecord) -> bool:
        said = record.getMessage()
        return "UNEXPECTED" not in said or "MISSING" in said or "MISMATCH" in said

    reports.addFilter(told)
    try:
        yield
    finally:
        reports.removeFilter(told)

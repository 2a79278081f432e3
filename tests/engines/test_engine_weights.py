"""Weights that are damaged, or are not those that config.json speaks of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dragoman.core.errors import UserError
from dragoman.engines.fetch import fetch_model, whole_model
from dragoman.engines.transformers import TransformersEngine


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of a model that may be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "damaged")


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def cut_in_half(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def test_weights_that_break_off_are_the_users(folder: Path, tmp_path: Path) -> None:
    cut_in_half(folder)
    with pytest.raises(UserError, match=rf"{folder}: its weights cannot be loaded \(.*incomplete.*dragoman model"):
        TransformersEngine(folder)
    with pytest.raises(UserError, match=rf"model {folder}: .*incomplete"):
        fetch_model(str(folder), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"intermediate_size": 96}, r"have another shape for model\.layers\.0\.mlp\.down_proj\.weight and 5 others"),
        ({"num_hidden_layers": 3}, r"lack model\.layers\.2\.input_layernorm\.weight and 8 others"),
        ({"tie_word_embeddings": False}, r"lack lm_head\.weight"),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_the_users(
    changes: dict[str, Any], fault: str, folder: Path, tmp_path: Path
) -> None:
    configure(folder, **changes)
    with pytest.raises(UserError, match=f"{folder}: its weights {fault}, .*config.json.*dragoman model"):
        TransformersEngine(folder)
    with pytest.raises(UserError, match=f"model {folder}: its weights {fault}"):
        fetch_model(str(folder), tmp_path / "out")


def test_a_head_that_is_tied_to_the_embedding_is_not_missing(tiny_model: Path) -> None:
    model = whole_model(tiny_model, "tiny")
    assert model.config.tie_word_embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_model_that_does_not_fit_onto_the_gpu_is_the_users(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(transformers.PreTrainedModel, "to", refuse)
    with pytest.raises(UserError, match=rf"{tiny_model}: does not fit .*20 GiB\.\); end what else runs there"):
        TransformersEngine(tiny_model)

"""What was trained reaches the engine: nothing is rounded away on the way to the model folder."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dragoman.core.errors import UserError
from dragoman.engines.base import Request
from dragoman.engines.transformers import TransformersEngine
from dragoman.registry.policy import copy_tokenizer
from dragoman.training.actor import Actor
from dragoman.training.export import export, truncated
from dragoman.training.settings import AdapterParams

LAYER = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def base(tiny_model, tmp_path):
    """The tiny model on the bfloat16 grid, as published models are."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    folder = tmp_path / "base"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_model / name).read_bytes())
    return folder


def exported(actor, base, tmp_path):
    actor.save(tmp_path / "trained")
    export(base, tmp_path / "trained", tmp_path / "policy")
    return load_file(tmp_path / "policy" / "model.safetensors")


def test_a_small_adapter_update_survives_export_in_full(base, tmp_path):
    actor = Actor(base, AdapterParams(rank=4, alpha=8), torch.device("cpu"), bf16=True)
    torch.manual_seed(0)
    state = {n: torch.randn_like(p) * 4e-4 if "lora_B" in n else p for n, p in actor.state().items()}
    actor.load_state(state)
    up, down = (
        next(w for n, w in state.items() if n.endswith(f"{LAYER.removesuffix('weight')}lora_{x}.default.weight"))
        for x in "BA"
    )
    trained = 2 * up @ down  # alpha / rank = 2

    kept = exported(actor, base, tmp_path)[LAYER] - load_file(base / "model.safetensors")[LAYER].float()

    retention = float((kept * trained).sum() / trained.square().sum())
    assert retention == pytest.approx(1.0, abs=1e-3)
    assert float((kept - trained).norm() / trained.norm()) < 1e-3


def test_weights_trained_whole_are_exported_as_they_are(base, tmp_path):
    actor = Actor(base, None, torch.device("cpu"), bf16=True)
    with torch.no_grad():
        for parameter in actor.trainable():
            parameter += 1e-5
    weights = exported(actor, base, tmp_path)
    assert all(torch.equal(weights[name], p) for name, p in actor.lm.named_parameters())
    assert (tmp_path / "policy" / "tokenizer.json").is_file()
    assert not (tmp_path / ".policy").exists()


async def test_an_engine_rounds_a_float32_folder_to_bfloat16_as_it_reads(tiny_model, tmp_path):
    rounded = tmp_path / "rounded"
    shutil.copytree(tiny_model, rounded)
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(rounded)
    scores = []
    for folder in (tiny_model, rounded):
        engine = TransformersEngine(folder, dtype="bfloat16", threads=1)
        (result,) = await engine.generate([Request(prompt=(5, 6, 7), max_tokens=4)])
        await engine.close()
        scores.append(result.completions[0])
    assert load_file(tiny_model / "model.safetensors")[LAYER].dtype == torch.float32
    assert scores[0] == scores[1]


def test_a_base_whose_config_has_a_value_of_another_type_is_the_users(base, tmp_path):
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": "two"}))
    with pytest.raises(UserError, match=r"base: its config\.json has a value that cannot be \(.*'num_hidden_layers'"):
        truncated(base, None, tmp_path / "fewer")


@pytest.mark.parametrize("lists_its_layers", [True, False])
def test_a_model_whose_config_has_a_value_of_each_layer_is_truncated(tmp_path, tiny_model, lists_its_layers):
    """Qwen2's `layer_types`, which a published config may leave out."""
    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, pad_token_id=0,
    )  # fmt: skip
    whole = Qwen2ForCausalLM(config)
    whole.save_pretrained(tmp_path / "base")
    copy_tokenizer(tiny_model, tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    said = json.loads(path.read_text())
    assert len(said["layer_types"]) == 3
    if not lists_its_layers:
        path.write_text(json.dumps({name: value for name, value in said.items() if name != "layer_types"}))
    fewer = AutoModelForCausalLM.from_pretrained(truncated(tmp_path / "base", 2, tmp_path / "fewer"))
    assert len(fewer.model.layers) == 2 and len(fewer.config.layer_types) == 2
    for name, weight in fewer.named_parameters():
        assert torch.equal(weight, whole.get_parameter(name))


def test_layers_that_are_left_out_are_not_reported_and_a_weight_that_is_missing_is(base, tmp_path, caplog):
    logging.getLogger("transformers.modeling_utils").addHandler(caplog.handler)
    truncated(base, 1, tmp_path / "fewer")
    assert "UNEXPECTED" not in caplog.text
    weights = load_file(base / "model.safetensors")
    del weights[LAYER.replace("1", "0")]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    truncated(base, 1, tmp_path / "holed")
    assert "MISSING" in caplog.text
    logging.getLogger("transformers.modeling_utils").removeHandler(caplog.handler)

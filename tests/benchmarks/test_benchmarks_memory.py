"""What training keeps in memory: by a cut model as by the whole one, and the table by hand."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from benchmarks import memory
from benchmarks.memory import Footprint, footprint, table
from dragoman.training.actor import Actor
from dragoman.training.settings import AdapterParams

ADAPTER = AdapterParams(rank=4, alpha=8)


@pytest.mark.parametrize("adapter", [ADAPTER, None], ids=["adapter", "all weights"])
def test_a_model_is_known_by_its_first_two_layers(tiny_model, tmp_path, adapter):
    config = AutoConfig.from_pretrained(tiny_model)
    config.num_hidden_layers = 4
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    whole = Actor(tmp_path, adapter, torch.device("cpu"))
    trained = sum(p.numel() for p in whole.trainable())
    found = footprint(config, tokenizer, adapter)
    assert found.trained == memory.STATE * trained
    assert found.frozen == 2 * (sum(p.numel() for p in whole.parameters()) - trained)
    few, more = (memory.kept(whole, rows, 256) for rows in (2, 6))
    assert found.per_token == pytest.approx((more - few) / (4 * 256), rel=0.01)


def test_processes_divide_weights_and_not_activations():
    of = Footprint(frozen=4_000_000_000, trained=18_000_000_000, per_token=1e6)
    assert table(of, 2000, 4, critic=True, reference=True).splitlines()[2:] == [
        "| weights that are frozen | 12.0 | 3.0 |",  # 2 x 4, and a reference of 10^9 weights in float32
        "| weights that are trained, gradients, optimizer | 36.0 | 9.0 |",
        "| activations of 2,000 tokens | 4.0 | 4.0 |",
        "| all | 52.0 | 16.0 |",
    ]


def test_the_command_takes_the_shape_of_another_model(tiny_model, tmp_path, capsys):
    config = json.loads((tiny_model / "config.json").read_text())
    wide = tmp_path / "config.json"
    wide.write_text(json.dumps(config | {"vocab_size": 16_000_000}))  # 64 numbers for each word
    memory.main(["--model", str(tiny_model), "--config", str(wide), "--rank", "4", "--processes", "2"])
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| GB in each process | now | divided by 2 |"
    assert rows[2] == "| weights that are frozen | 2.0 | 1.0 |" and rows[4].startswith(
        "| activations of 8,192 tokens |"
    )

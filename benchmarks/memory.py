"""What training keeps in the memory of each process, and what would be left of it if several shared it (FSDP).

Weights are counted. What the forward pass keeps for the backward pass is measured: on the model cut to one layer and to two,
with random weights, as each further layer keeps as much. Workspace of kernels and what an allocator holds back come on top.

    python -m benchmarks.memory --model data/model --rank 32 --processes 4
    python -m benchmarks.memory --model data/model --rank 0          # all weights are trained

Of another model its `config.json` is enough: `--config FILE`, with the tokenizer of `--model`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.training.actor import Actor
from dragoman.training.settings import AdapterParams

ROWS, LENGTH = (1, 3), 256
"""By which activations are measured: what two more rows add."""
STATE = 18
"""Bytes for each trained weight: itself, its gradient and two means of AdamW in float32, and the bfloat16 that it computes in."""


@dataclass(frozen=True)
class Footprint:
    """Of one model that is trained, in bytes."""

    frozen: int
    trained: int
    """Weights with their gradients and the optimizer's state."""
    per_token: float
    """What is kept for the backward pass, for each token of a micro-batch."""


def footprint(config: Any, tokenizer: Any, adapter: AdapterParams | None) -> Footprint:
    """That of an actor of this configuration.

    Args:
        tokenizer: any; its tokens only have to be known to the cut model.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        weights = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    layers = int(config.num_hidden_layers)
    (one, kept_by_one), (two, kept_by_two) = (_measured(_cut(config, n), tokenizer, adapter) for n in (1, 2))
    per_token = kept_by_one + (layers - 1) * (kept_by_two - kept_by_one)
    if adapter is None:
        return Footprint(0, STATE * weights, per_token)
    return Footprint(2 * weights, STATE * (one + (layers - 1) * (two - one)), per_token)


def _cut(config: Any, layers: int) -> Any:
    cut = deepcopy(config)
    cut.num_hidden_layers = layers
    if getattr(cut, "layer_types", None):
        cut.layer_types = cut.layer_types[:layers]
    return cut


def _measured(config: Any, tokenizer: Any, adapter: AdapterParams | None) -> tuple[int, float]:
    """How many weights an actor of this configuration trains, and how many bytes it keeps for each token."""
    from transformers import AutoModelForCausalLM

    config.vocab_size = len(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        actor = Actor(Path(folder), adapter, torch.device("cpu"))
    few, more = (kept(actor, rows, LENGTH) for rows in ROWS)
    return sum(p.numel() for p in actor.trainable()), (more - few) / ((ROWS[1] - ROWS[0]) * LENGTH)


def kept(actor: Actor, rows: int, length: int) -> int:
    """Bytes that the forward pass of so many tokens keeps for the backward pass, besides weights as they are."""
    own = {p.untyped_storage().data_ptr() for p in actor.parameters()}
    found: dict[int, torch.UntypedStorage] = {}  # held, so that no memory is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    ids = torch.zeros(rows, length, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        states = actor.lm.model(input_ids=ids).last_hidden_state
    assert states.requires_grad
    return sum(storage.nbytes() for storage in found.values())


def table(of: Footprint, tokens: int, processes: int, *, critic: bool, reference: bool) -> str:
    """In GB, for a policy, and what the learner has besides: a critic of its own, a whole reference."""
    times = 1 + critic
    frozen = times * of.frozen + (of.trained // STATE * 4 if reference else 0)
    rows = [
        ("weights that are frozen", frozen, True),
        ("weights that are trained, gradients, optimizer", times * of.trained, True),
        (f"activations of {tokens:,} tokens", int(times * of.per_token * tokens), False),
    ]
    lines = [f"| GB in each process | now | divided by {processes} |", "|---|---|---|"]
    sums = [0.0, 0.0]
    for name, size, divisible in rows:
        both = size / 1e9, size / 1e9 / (processes if divisible else 1)
        sums = [a + b for a, b in zip(sums, both, strict=True)]
        lines.append(f"| {name} | {both[0]:.1f} | {both[1]:.1f} |")
    return "\n".join([*lines, f"| all | {sums[0]:.1f} | {sums[1]:.1f} |"])


def main(argv: Sequence[str] | None = None) -> None:
    from transformers import AutoConfig, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/model"), help="a model folder (%(default)s)")
    parser.add_argument("--config", type=Path, help="the config.json of another one")
    parser.add_argument("--rank", type=int, default=32, help="of the adapter; 0 trains all weights (%(default)s)")
    parser.add_argument("--tokens", type=int, default=8192, help="rl.micro_batch_tokens (%(default)s)")
    parser.add_argument("--processes", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--critic", action="store_true", help="one of its own (rl.critic: separate)")
    chosen = parser.parse_args(argv)
    adapter = AdapterParams(rank=chosen.rank, alpha=2 * chosen.rank) if chosen.rank else None
    config = AutoConfig.from_pretrained(chosen.config or chosen.model)
    of = footprint(config, AutoTokenizer.from_pretrained(chosen.model), adapter)
    print(table(of, chosen.tokens, chosen.processes, critic=chosen.critic, reference=adapter is None))


if __name__ == "__main__":
    main()

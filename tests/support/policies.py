"""Policies as training stages leave them, with bytes in place of weights."""

import shutil
from pathlib import Path
from typing import Any

from dragoman.registry.policy import PolicySet, publish
from dragoman.registry.version import Version
from dragoman.registry.versions import Registry


def trained(project: Path, stage: str, weights: bytes, parent: str = "", **more: Any) -> PolicySet:
    """A policy as a training stage leaves it, with `more` in its manifest; an earlier one of the stage is removed."""
    made = project / "made"
    made.mkdir()
    (made / "model.safetensors").write_bytes(weights)
    (made / "config.json").write_text("{}")
    manifest = {"stage": stage, "system": "c3po", "base": "smollm2", "parent": parent, "data": {"questions": "d1"}}
    manifest |= {
        "parameters": {"lr": 0.1, "guards": {"max_kl": 1.0}},
        "metrics": {"dev_reward": 0.5, "stopped": ""},
        **more,
    }
    policy = publish(made, project / "results" / stage, manifest)
    shutil.rmtree(made)
    return policy


def rolled_back(registry: Registry) -> tuple[Version, Version]:
    """Let the registry swap champion and previous, without a record. Returns the champion now, and the one before."""
    champion, previous = registry.way_back()
    assert registry.rollback(champion, previous, "2026-01-01T00:00:00+0000")
    return previous, champion

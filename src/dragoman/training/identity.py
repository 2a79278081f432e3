"""All that the result of a training run depends on, so that a run goes on only where nothing of it has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.identity import code_hash
from dragoman.core.journal import digest
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.scheduler import describe
from dragoman.systems.base import System
from dragoman.training.run import TrainingRun

DESCRIBED = (
    "dragoman.engines",
    "dragoman.registry",
    "dragoman.retrieval",
    "dragoman.runtime",
    "dragoman.systems",
    "dragoman.tracking",
)
"""Left out of a trainer's code: the rollouts' description has it, or its result cannot depend on it."""


def run_identity(
    trainer: Sequence[str],
    run: TrainingRun,
    system: System,
    backends: Backends,
    manifest: Mapping[str, Any],
    *,
    exploration: Exploration,
    learnt_from: Sequence[str],
    shaping: str | None = None,
) -> dict[str, Any]:
    """All that the result of a training run depends on; see `registry.policy.resume`.

    Args:
        trainer: the modules that train: their import closure is part of the identity, and that of other trainers is not.
        backends: with the policy that training starts from as its proxy.
        manifest: of the policy to be: its parameters and the hashes of its data.
        learnt_from: questions or samples, in their order: ids where `manifest` has the hash of their file.
        shaping: of the reward, where there is one: its code and its judge decide what is learnt, too.
    """
    return {
        "trainer": code_hash(*trainer, stop=DESCRIBED),
        **describe(run.system, system, backends, exploration, run.seed, backends.reward(run.reward, shaping=shaping)),
        **{key: value for key, value in manifest.items() if key not in ("system", "trained_with")},
        "learnt_from": list(learnt_from),
        "dev": [digest(question.to_json()) for question in run.dev],  # a corrected answer chooses another policy
    }

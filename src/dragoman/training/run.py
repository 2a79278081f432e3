"""What all training has in common, whatever it learns by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.core.types import Question
from dragoman.registry.policy import PolicySet
from dragoman.runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What is trained, from which policy on, by which score, and where it goes."""

    system: str
    """Whose roles are trained, by its name."""
    dev: Sequence[Question]
    """Never learnt from; greedy answers to them choose the policy that is published."""
    runtime: Runtime
    start: PolicySet
    """The policy to start from. Weights of roles that are not trained are carried over."""
    reward: str
    """The score that counts, by its name, such as `cover_em`."""
    seed: int
    out: Path
    """The stage's folder. A run that was cut short goes on there when it is begun again with equal arguments."""
    data: Mapping[str, str]
    """Hashes of what is learnt from, for the manifest."""

"""The paper's ablations (C-3PO section 6.4 and appendix C): what is left when one part is taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.core.errors import UserError


@dataclass(frozen=True)
class Ablation:
    """A variant of the trained system: another policy, other settings of the system, or another way to train."""

    what: str
    policy: str = "rl"
    settings: Mapping[str, Any] = field(default_factory=dict)
    single: bool = False
    """Train it first: with single trajectories and the system's reward, instead of trees and credit."""


ABLATIONS = {
    "no-tree": Ablation("RL on single trajectories with the system's reward", single=True),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
    "only-no-retrieval": Ablation("always answer from memory", settings={"strategy": "NoRetrieval"}),
    "only-retrieval": Ablation("always search once", settings={"strategy": "Search"}),
    "only-planning": Ablation("always plan", settings={"strategy": "Plan"}),
    "icl": Ablation("no training, examples in the prompt", policy="", settings={"shots": 3}),
}


def ablation(name: str) -> Ablation:
    """The ablation called `name`.

    Raises:
        UserError: there is none.
    """
    if name not in ABLATIONS:
        raise UserError(f"unknown ablation {name!r}: choose from {', '.join(ABLATIONS)}")
    return ABLATIONS[name]

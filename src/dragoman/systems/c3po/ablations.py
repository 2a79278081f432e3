"""The paper's ablations (C-3PO section 6.4 and appendix C): what is left when one part is taken away."""

from __future__ import annotations

from dragoman.systems.base import Ablation

ABLATIONS = {
    "no-tree": Ablation("RL on single trajectories with the system's reward", single=True),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
    "only-no-retrieval": Ablation("always answer from memory", settings={"strategy": "NoRetrieval"}),
    "only-retrieval": Ablation("always search once", settings={"strategy": "Search"}),
    "only-planning": Ablation("always plan", settings={"strategy": "Plan"}),
    "icl": Ablation("no training, examples in the prompt", policy="", settings={"shots": 3}),
}

"""The paper's ablations (C-3PO section 6.4 and appendix C), and our own: what is left when one part is taken away.

Those with a warm-up of their own take the time of `seeds` and `sft`; they are compared with `no-rl`.
"""

from __future__ import annotations

from dragoman.systems.base import Ablation

WRITTEN = {"decide": "text"}

ABLATIONS = {
    "no-tree": Ablation("RL on single trajectories with the system's reward", single=True),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
    "only-no-retrieval": Ablation("always answer from memory", settings={"strategy": "NoRetrieval"}),
    "only-retrieval": Ablation("always search once", settings={"strategy": "Search"}),
    "only-planning": Ablation("always plan", settings={"strategy": "Plan"}),
    "icl": Ablation(
        "no training, examples in the prompt",
        policy="",
        settings={"shots": 3, "prompts": "full", **WRITTEN},  # marks have no examples
    ),
    "text": Ablation("a warm-up that writes its actions", settings=WRITTEN, warm_up=True),
    "full-prompts": Ablation("a warm-up with instructions in its prompts", settings={"prompts": "full"}, warm_up=True),
    "no-roadmap": Ablation("a warm-up without the LLM's plan", settings={"roadmap": False}, warm_up=True),
    "no-rounds": Ablation("a warm-up on an oracle's states alone", training={"sft.rounds": 0}, warm_up=True),
}

"""mRAG: a coordinator with its agents, trained on its own best trajectories (Salemi et al. 2025, CIIR at LiveRAG)."""

from dragoman.systems.base import Ablation
from dragoman.systems.mrag.system import MRAG

SYSTEM = MRAG
ABLATIONS = {
    "no-validator": Ablation("no agent checks the response", settings={"validator": False}),
    "no-planner": Ablation("no agent lists steps", settings={"planner": False}),
    "single-agent": Ablation(
        "a warm-up of one agent with all tools: it searches, reads and decides itself",
        settings={"agents": "single"},
        warm_up=True,
    ),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
    "no-training": Ablation("the untrained proxy under its grammar", policy=""),
}

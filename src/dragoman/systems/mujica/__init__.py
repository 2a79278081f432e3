"""Mujica, the system of Mujica-MyGO."""

from dragoman.systems.base import Ablation
from dragoman.systems.mujica.system import Mujica

SYSTEM = Mujica
ABLATIONS = {  # table 4
    "no-split": Ablation("no workers: the planner reads what is found", settings={"split": False}),
    "no-graph": Ablation(
        "one subquestion at a time: a chain instead of a graph",
        settings={"max_questions": 1},
        warm_up=True,  # at marks the chain's end is an option of its own
    ),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
}

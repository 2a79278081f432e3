"""MAPS: a multi-agent system with individually optimized expertise."""

from dragoman.systems.base import Ablation
from dragoman.systems.maps.system import MAPS

SYSTEM = MAPS
ABLATIONS = {  # `no-judge` is in table 3 of the paper
    "no-judge": Ablation("no judge: a fixed number of rounds", settings={"rounds": "fixed"}),
    "no-extension": Ablation(
        "no query extension: the next page of the question's search", settings={"extension": "pages"}
    ),
    "no-rl": Ablation("the warm-up alone", policy="sft"),
}

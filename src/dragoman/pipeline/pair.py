"""Stage `pair`: a system trained by an algorithm, and compared with its warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.pipeline import evaluate, rl, warm_up
from dragoman.pipeline.project import Project
from dragoman.training import algorithms


@dataclass(frozen=True, kw_only=True)
class Options:
    system: Annotated[str, Doc("A system.")]
    algorithm: Annotated[str, Doc(f"An algorithm: {', '.join(algorithms.names())}.")]
    warm_up: Annotated[Path | None, Doc("What `warm-up` left; results/pairs/SYSTEM-warm-up by default.")] = None
    out: Annotated[Path | None, Doc("Where it goes; results/pairs/SYSTEM-ALGORITHM by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("pairs") / f"{self.system}-{self.algorithm}"


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Train from the warm-up, and evaluate both; returns the metrics of both stages.

    Raises:
        UserError: no such system or algorithm, or its warm-up is not there.
    """
    out, system = options.folder(project), options.system
    own = project.changed({"train.system": system, "train.algorithm": options.algorithm})
    start = (options.warm_up or warm_up.Options(system=system).folder(project)) / "sft"
    trained = await rl.run(own, rl.Options(policy=str(start), out=out / "rl"))
    systems = (f"{system}@{start}", f"{system}@{out / 'rl'}")
    compared = await evaluate.run(own, evaluate.Options(systems=systems, out=out / "evaluate"))
    return {"rl": trained, "evaluate": compared}

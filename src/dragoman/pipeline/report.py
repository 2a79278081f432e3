"""Stage `report`: the evaluations of the pipeline side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.text import folder_name
from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.report import write_joint_report
from dragoman.pipeline.project import Project


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Annotated[Path | None, Doc("Write the report there; without it, only print the table.")] = None
    so_far: Annotated[bool, Doc("Leave out systems that have not been evaluated yet.")] = False
    pool: Annotated[
        tuple[Path, ...],
        Doc("Folders results/ of other runs, such as clones with another seed. Their questions count beside your own."),
    ] = ()


async def run(project: Project, options: Options) -> dict[str, Any]:
    """The metrics of each dataset, by its name.

    Raises:
        UserError: a system has not been evaluated yet, or none at all.
    """
    params, evaluated = project.params, project.results("evaluate")
    metrics = {}
    for dataset in params.datasets:
        names = [f"{dataset}-{folder_name(name)}" for name in params.compared(dataset)]
        if options.so_far:
            names = [name for name in names if (evaluated / name / "metrics.json").is_file()]
        runs = [
            [evaluated / name for name in names],
            *([results / "evaluate" / name for name in names] for results in options.pool),
        ]
        metrics[dataset] = merge(runs, dataset=dataset, seed=params.seed, resamples=params.evaluate.bootstrap)
    if options.out is not None:
        seeds = project.results("seeds") / "metrics.json"
        sources = json.loads(seeds.read_text(encoding="utf-8")).get("sources") if seeds.is_file() else None
        drift = project.results("drift") / "table.md"
        served = drift.read_text(encoding="utf-8") if drift.is_file() else None
        write_joint_report(metrics, options.out, sources=sources, served=served)
    return metrics

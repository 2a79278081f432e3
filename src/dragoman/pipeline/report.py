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


async def run(project: Project, options: Options) -> dict[str, Any]:
    """The metrics of each dataset, by its name.

    Raises:
        UserError: a system has not been evaluated yet, or none at all.
    """
    params, evaluated = project.params, project.results("evaluate")
    metrics = {}
    for dataset in params.datasets:
        folders = [evaluated / f"{dataset}-{folder_name(name)}" for name in params.compared(dataset)]
        if options.so_far:
            folders = [folder for folder in folders if (folder / "metrics.json").is_file()]
        metrics[dataset] = merge(folders, dataset=dataset, seed=params.seed, resamples=params.evaluate.bootstrap)
    if options.out is not None:
        seeds = project.results("seeds") / "metrics.json"
        sources = json.loads(seeds.read_text(encoding="utf-8")).get("sources") if seeds.is_file() else None
        write_joint_report(metrics, options.out, sources=sources)
    return metrics

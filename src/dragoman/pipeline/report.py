"""Stage `report`: the evaluations of the pipeline side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.core.text import folder_name
from dragoman.evaluation.evaluate import merge
from dragoman.evaluation.predictions import PREDICTIONS
from dragoman.evaluation.report import write_joint_report
from dragoman.pipeline.project import Project
from dragoman.systems import ablation


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Annotated[Path | None, Doc("Write the report there; without it, only print the table.")] = None
    so_far: Annotated[bool, Doc("Leave out systems that have not been evaluated yet.")] = False
    pool: Annotated[
        tuple[Path, ...],
        Doc("Folders results/ of other runs, such as clones with another seed. Their questions count beside your own."),
    ] = ()
    joined: Annotated[
        tuple[Path, ...],
        Doc("Instead of the pipeline's: folders that `evaluate --out` made, of the same systems on several data sets."),
    ] = ()
    ablations: Annotated[
        tuple[str, ...], Doc("Instead: variants that `ablate` has evaluated, against what they were made from.")
    ] = ()


async def run(project: Project, options: Options) -> dict[str, Any]:
    """The metrics of each dataset, by its name.

    Raises:
        UserError: a system or a variant has not been evaluated yet, or none at all. Or flags that exclude one another.
    """
    instead = [f"--{flag}" for flag in ("joined", "ablations") if getattr(options, flag)]
    ignored = [
        *instead[1:],
        *(["--so-far"] if options.so_far else []),
        *(["--pool"] if options.pool and options.joined else []),
    ]
    if instead and ignored:
        raise UserError(f"report: {ignored[0]} has no effect beside {instead[0]}; leave one of them out")
    if instead:
        metrics = _joined(project, options.joined) if options.joined else _ablated(project, options)
        if options.out is not None:
            write_joint_report(metrics, options.out)
        return metrics
    params, evaluated = project.params, project.results("evaluate")
    metrics = {}
    for dataset in params.datasets:
        names = [f"{dataset}-{folder_name(name)}" for name in params.compared(dataset)]
        if options.so_far:
            names = [name for name in names if (evaluated / name / "metrics.json").is_file()]
        if not names:
            raise UserError(f"report: nothing has been evaluated on {dataset} yet; `make pipeline` does it")
        if missing := [name for name in names if not (evaluated / name / PREDICTIONS).is_file()]:
            raise UserError(
                f"{evaluated / missing[0] / PREDICTIONS}: no such file ({len(missing)} of {len(names)} systems have none on "
                f"{dataset}); `make pipeline` evaluates them, --so-far leaves them out, and --joined takes folders of your own"
            )
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


def _ablated(project: Project, options: Options) -> dict[str, Any]:
    """The metrics of the trained system and of its variants, by the dataset; of the differences only those that tell something.

    A variant with a warm-up of its own stands against the warm-up and against other such variants. The others stand against
    what RL made of the warm-up.
    """
    system, dataset = project.params.train.system, project.params.train.dataset
    variants = tuple(dict.fromkeys(options.ablations))
    warmed = [variant for variant in variants if ablation(system, variant).warm_up]
    made_from = {variant: f"{system}@{'sft' if variant in warmed else 'rl'}" for variant in variants}
    runs, names = [], {}
    for results in (project.root / "results", *options.pool):
        folders = [
            results / "evaluate" / f"{dataset}-{folder_name(trained)}" for trained in dict.fromkeys(made_from.values())
        ]
        for variant in made_from:
            folders.append(folder := results / "ablations" / variant)
            names[folder] = variant
            if not (path := folder / "metrics.json").is_file():
                raise UserError(f"{path}: no such file; `dragoman ablate {variant}` makes it")
            if (of := _evaluated(path)["dataset"]) != dataset:
                raise UserError(
                    f"{path}: of {of}, and train.dataset is {dataset}; run `dragoman ablate {variant}` again"
                )
        runs.append(folders)
    metrics = merge(
        runs,
        dataset=dataset,
        seed=project.params.seed,
        resamples=project.params.evaluate.bootstrap,
        named=lambda folder, system: names.get(folder, system),
    )
    told = [f"{variant} - {trained}" for variant, trained in made_from.items()]
    told += [f"{later} - {earlier}" for earlier, later in combinations(warmed, 2)]
    if alone := next((pair for pair in told if not metrics["paired"][pair]), None):
        raise UserError(f"{alone}: not one question in common; run `dragoman ablate` again, since others were made")
    return {dataset: metrics | {"paired": {pair: metrics["paired"][pair] for pair in told}}}


def _joined(project: Project, folders: Sequence[Path]) -> dict[str, Any]:
    """The metrics of each folder, by the name of its dataset, and of the questions of all of them together."""
    metrics: dict[str, Any] = {}
    for folder in folders:
        path = folder / "metrics.json"
        if not path.is_file():
            raise UserError(f"{path}: no such file; `dragoman evaluate --out {folder}` makes it")
        one = _evaluated(path)
        if one["dataset"] in metrics:
            raise UserError(
                f"{path}: {one['dataset']} is there already; for several runs of one data set there is --pool"
            )
        metrics[one["dataset"]] = one
    common = set.intersection(*(set(one["systems"]) for one in metrics.values()))
    for folder, one in zip(folders, metrics.values(), strict=True):
        if more := set(one["systems"]) - common:
            raise UserError(f"{folder}: has {min(more)}, which another one lacks; evaluate the same systems on each")
    together, seed = " + ".join(metrics), project.params.seed
    pooled = merge([[f] for f in folders], dataset=together, seed=seed, resamples=project.params.evaluate.bootstrap)
    for of_runs in ("runs", "of_fewer"):  # one run, of several data sets
        pooled.pop(of_runs, None)
    return metrics | {together: pooled}


def _evaluated(path: Path) -> dict[str, Any]:
    """What an evaluation has written to `path`.

    Raises:
        UserError: another command has written it.
    """
    try:
        one: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        made = isinstance(one["dataset"], str) and isinstance(one["systems"], dict)
    except (ValueError, KeyError, TypeError):
        made = False
    if not made:
        raise UserError(f"{path}: not the figures of an evaluation; name a folder that `dragoman evaluate --out` made")
    return one

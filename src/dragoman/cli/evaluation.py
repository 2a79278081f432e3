"""Commands that compare systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from dragoman.cli.command import ALLOW_MISMATCH, LLM, SEED, command, say_error
from dragoman.cli.processes import divided
from dragoman.core import exits
from dragoman.evaluation.predictions import PREDICTIONS, read_predictions
from dragoman.evaluation.report import markdown
from dragoman.evaluation.transfer import markdown as carried_over
from dragoman.pipeline import ablate as ablate_stage
from dragoman.pipeline import bench as bench_stage
from dragoman.pipeline import evaluate as evaluate_stage
from dragoman.pipeline import report as report_stage
from dragoman.pipeline import transfer as transfer_stage
from dragoman.pipeline.project import Project


@command(*LLM, SEED, ALLOW_MISMATCH, track=True)
async def evaluate(project: Project, options: evaluate_stage.Options) -> None:
    """Compare systems on the same questions, with the same frozen LLM and the same index.

    Example: dragoman evaluate --systems direct,standard,c3po --limit 50 --out results/try
    Example: dragoman evaluate --corpus corpus.jsonl --questions dev.jsonl --systems standard,c3po --out results/mine
    Example: dragoman evaluate --until-clear standard,c3po@rl --out results/clear
    Example: dragoman evaluate --processes 2
    Example: dragoman evaluate --shard 1/2; dragoman evaluate --shard 2/2; dragoman evaluate --merge 2
    """
    options = await divided(options, options.folder(project))
    metrics = await evaluate_stage.run(project, options)
    show(metrics, options.place(options.folder(project)), of_shard=options.shard is not None)


@command(*LLM, SEED, ALLOW_MISMATCH, track=True)
async def bench(project: Project, options: bench_stage.Options) -> None:
    """Compare all systems of a suite on all its data sets, with the same frozen LLM, index and questions.

    What is finished is not done again: the same command goes on. Exit code 1 when a cell has failed.

    Example: dragoman bench --suite quick
    Example: dragoman bench --suite papers --datasets hotpotqa,2wiki --limit 100
    Example: dragoman bench --shard 1/2; dragoman bench --shard 2/2; dragoman bench --merge 2
    """
    out = options.folder(project)
    options = await divided(options, out)
    cells = (await bench_stage.run(project, options))["cells"]
    if options.shard:  # what has failed is said of the whole
        print(
            "".join(f"{cell.system} on {cell.dataset}: {cell.status}\n" for cell in cells), options.place(out), sep=""
        )
        return
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"\n{out}/table.html, table.md, metrics.json, plots/; DATASET/SYSTEM/ has each cell")
    failed = [cell for cell in cells if cell.status == "failed"]
    for cell in failed:
        say_error(f"{cell.system} on {cell.dataset}: {cell.reason}")
    if failed:
        raise typer.Exit(exits.FAULT)


@command(arguments=("variant",), track=True)
async def ablate(project: Project, options: ablate_stage.Options) -> None:
    """Take one part of the trained system away, and evaluate what is left.

    Example: dragoman ablate only-retrieval
    """
    show(await ablate_stage.run(project, options), options.folder(project))


@command(arguments=("change",), track=True)
async def transfer(project: Project, options: transfer_stage.Options) -> None:
    """Carry the trained policy out of its domain: to another retriever, another LLM, or other data.

    It prints what is lost against stage `evaluate`, with all that was carried over before.

    Example: dragoman transfer retriever --set transfer.retriever=dense
    Example: dragoman transfer llm-data
    """
    grid, out = await transfer_stage.run(project, options), options.folder(project)
    print(carried_over(grid))
    show(grid[out.name], out)


@command()
async def report(project: Project, options: report_stage.Options) -> None:
    """Put the evaluations of the pipeline side by side.

    Example: dragoman report --out results/report
    Example: dragoman report --pool ../seed1/results,../seed2/results
    Example: dragoman report --joined results/hotpotqa,results/2wiki --out results/both
    Example: dragoman report --ablations text,no-rounds,no-tree
    """
    metrics = await report_stage.run(project, options)
    if options.out is not None:
        print(f"{options.out}/table.md, metrics.json, plots/; `make ui` shows the runs")
        return
    for of_dataset in metrics.values():
        print(markdown(of_dataset))


def show(metrics: dict[str, Any], out: Path, *, of_shard: bool = False) -> None:
    """Print an evaluation; exit code 1 where a system has answered no question, which is said of the whole and not of a shard."""
    print(markdown(metrics), end="")
    print(f"\n{out}/metrics.json, {PREDICTIONS}, table.md, plots/, episodes/")
    for name, summary in metrics["systems"].items():
        if summary["failed"] == metrics["n"] and not of_shard:
            say_error(f"{name}: every question failed{_first_error(out, name)}")
            raise typer.Exit(exits.FAULT)


def _first_error(out: Path, system: str) -> str:
    """Why the first question of a system failed, and where the others' reasons are."""
    rows = read_predictions(out)
    error = next((f", the first with: {row['error']}" for row in rows if row["system"] == system and row["error"]), "")
    return f"{error}; all reasons are in {out}/{PREDICTIONS}"

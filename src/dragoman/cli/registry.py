"""Commands about versions of the proxy."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dragoman.cli.command import app, command
from dragoman.cli.evaluation import show
from dragoman.core import exits
from dragoman.core.tables import table_lines
from dragoman.pipeline import compare as compare_stage
from dragoman.pipeline import decisions
from dragoman.pipeline import drift as drift_stage
from dragoman.pipeline import promote as promote_stage
from dragoman.pipeline import register as register_stage
from dragoman.pipeline.project import Project
from dragoman.registry.version import describe


@command()
async def register(project: Project, options: register_stage.Options) -> None:
    """Make what the training stages have left (`policies` in params.yaml) versions of the proxy. `promote` does so too.

    Example: dragoman register
    """
    for version in (await register_stage.run(project, options)).values():
        print(f"{version.name} {version.policy} {version.stage} {version.folder}")


@command(arguments=("policy",))
async def promote(project: Project, options: promote_stage.Options) -> None:
    """Put a trained policy to the test against the champion, and let it take its place if it is provably better.

    Whatever the stages have trained is registered first. The conditions are those of `promote` in params.yaml. Without a
    champion, the challenger has to beat promote.baseline. Exit code 3 when it was refused; the champion is then as before.

    Example: dragoman promote
    Example: dragoman promote sft
    """
    decision, out = await promote_stage.run(project, options), options.folder(project)
    if "unchanged" in decision:
        print(decision["unchanged"])
        return
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"\n{out}/decision.json, table.md, plots/")
    if not decision["promoted"]:
        print("refused: " + "; ".join(decision["reasons"]), file=sys.stderr)
        raise typer.Exit(exits.REFUSED)


@command()
async def drift(project: Project, options: drift_stage.Options) -> None:
    """Show whether the endpoint's traffic is still what it was when the champion was promoted. Exit code 4 when it is not.

    Example: dragoman drift
    Example: dragoman drift --episodes kept --out results/drift
    """
    found, out = await drift_stage.run(project, options), options.folder(project)
    print((out / drift_stage.TABLE).read_text(encoding="utf-8"), end="")
    print(f"\n{out}/{drift_stage.TABLE}, metrics.json")
    if found["alarm"]:
        raise typer.Exit(exits.DRIFTED)


@app.command()
def rollback() -> None:
    """Make the previous champion the champion again. Once more, and it is undone.

    Example: dragoman rollback
    """
    champion, gone = decisions.rollback(Project().registry)
    print(f"champion: {champion.name} ({champion.policy}); previous: {gone.name} ({gone.policy})")


@app.command()
def lineage(
    version: Annotated[
        str | None, typer.Argument(help="An alias, a number (v3) or a policy's id; without it, all versions.")
    ] = None,
) -> None:
    """Show where a version of the proxy comes from, back to the base model, and check its weights.

    \b
    Example: dragoman lineage
    Example: dragoman lineage champion
    """
    registry = Project().registry
    decisions.settle(registry, record_later=True)
    if version is None:
        versions = registry.history()
        if not versions:
            print(
                "no versions yet: `dragoman register` makes versions of what was trained, and so does `dragoman promote`"
            )
        for v in versions:
            print(f"{v.name:4} {v.policy} {v.stage:5} {', '.join(v.aliases) or '-':20} {v.decision.partition(';')[0]}")
        return
    chain = registry.lineage(version)
    for v in chain:
        print("\n".join(describe(v)))
    print(f"base {chain[-1].base}" if not chain[-1].parent else f"parent {chain[-1].parent} is no version")
    print(f"{registry.open(chain[0]).folder}: the weights are those that were registered")


@command(anywhere=True)
async def compare(project: Project, options: compare_stage.Options) -> None:
    """Show in what two versions of the proxy differ: settings, data, code, figures.

    Example: dragoman compare champion challenger
    Example: dragoman compare v1 v3 --evaluate
    """
    compared = await compare_stage.run(project, options)
    a, b = compared["versions"]
    print("\n".join(table_lines(["", a, b], ([str(cell) for cell in row] for row in compared["differences"]))))
    if "evaluation" in compared:
        print()
        show(compared["evaluation"], compared["out"])

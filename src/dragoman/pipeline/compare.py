"""Stage `compare`: in what two versions of the proxy differ, on paper and on the held-out questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core.errors import UserError
from dragoman.pipeline import evaluate
from dragoman.pipeline.decisions import settle
from dragoman.pipeline.project import Project
from dragoman.registry.version import differences


@dataclass(frozen=True, kw_only=True)
class Options:
    a: Annotated[str, Doc("A version: an alias, a number (v3) or a policy's id.")]
    b: Annotated[str, Doc("Another one.")]
    evaluate: Annotated[bool, Doc("Also put the held-out questions to both, as `promote` does.")] = False


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Compare two versions.

    Returns:
        `versions` (their names), `differences` (rows of key, the one's value, the other's), and, if asked for,
        `evaluation` (its metrics) and `out` (its folder).

    Raises:
        UserError: no such version, or one twice where both are to be asked.
    """
    settle(project.registry, record_later=True)
    first, second = (project.registry.find(name) for name in (options.a, options.b))
    if options.evaluate and first.name == second.name:
        raise UserError(f"{options.a} and {options.b} are one version, {first.name}: name two to put questions to")
    found = {"versions": (first.name, second.name), "differences": differences(first, second)}
    if not options.evaluate:
        return found
    settings = evaluate.Options(
        dataset=project.params.promote.dataset,
        questions=project.held_out,
        limit=project.params.promote.limit,
        systems=(f"{first.system}@{first.name}", f"{second.system}@{second.name}"),
        out=project.results("compare") / f"{first.name}-{second.name}",
    )
    opened = project.changed({"allow_mismatch": True})  # as by the gate: they may be trained with other settings
    return {**found, "evaluation": await evaluate.run(opened, settings), "out": settings.out}

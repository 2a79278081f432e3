"""Command `drift`: what the endpoint has found out about its traffic, as a table for people and for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.evaluation.drift import STATE, Drift, markdown
from dragoman.pipeline.project import Project

TABLE = "table.md"


@dataclass(frozen=True, kw_only=True)
class Options:
    episodes: Annotated[Path | None, Doc("The folder with drift.json; serve.episodes by default.")] = None
    out: Annotated[Path | None, Doc("Where the table goes; results/drift by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("drift")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Write `table.md` and `metrics.json` for the policy that was served last.

    Returns:
        What `metrics.json` holds: `policy`, `answers`, `alarm` (null, or the `measure` of the first and `at`), `measures`.

    Raises:
        UserError: no endpoint has written there, or it has served no champion.
    """
    folder = options.episodes or project.episodes
    state = Drift.read(folder / STATE)
    if not state.traffic:
        raise UserError(f"{folder / STATE}: no champion has been served yet")
    traffic, out = state.traffic[-1], options.folder(project)
    at = traffic.alarmed_at
    metrics = {
        "policy": traffic.policy,
        "answers": traffic.answers,
        "alarm": None if at is None else {"measure": traffic.alarmed_by, "at": at},
        "measures": {
            measure: {"windows": series.windows, "alarms": series.alarms, **(series.last.model_dump() if series.last else {})}
            for measure, series in traffic.series.items()
        },
    }  # fmt: skip
    files.write_json(out / "metrics.json", metrics)
    files.write_text(out / TABLE, markdown(traffic, project.params.serve.drift))
    return metrics

"""Stage `validate`: refuse bad data before it costs a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.pipeline.project import Project
from dragoman.quality import validate
from dragoman.rewards import Reward
from dragoman.synthesis.plan import load_plan


@dataclass(frozen=True, kw_only=True)
class Options:
    paths: Annotated[
        tuple[Path, ...], Doc("Files and folders; the datasets, results/synthesize and results/seeds by default.")
    ] = ()
    out: Annotated[Path | None, Doc("Where the report and Data Docs go; results/validate by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("validate")


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Check files against all that is expected of them; returns the report.

    Raises:
        UserError: there is nothing to check, or an expectation is not met.
    """
    params, settings = project.params, project.params.validation
    if settings.max_sample_tokens is None:
        settings = settings.model_copy(update={"max_sample_tokens": params.proxy.max_model_len})
    if settings.max_credit is None:
        _, most = Reward.of(params.train.reward, shaping=params.rl.shaping).shaped_bounds
        settings = settings.model_copy(update={"max_credit": most if math.isfinite(most) else None})
    # indexes are left out: after a new corpus they are stale until the next stage has built them
    made = [path for path in (project.results("synthesize"), project.results("seeds")) if path.is_dir()]
    paths = options.paths or [*map(project.dataset, (*params.datasets, *params.harvests)), *made]
    plan = load_plan(Path(params.synthesize.plan) if params.synthesize.plan else None)
    return validate(paths, options.folder(project), settings, plan=plan, track=project.tracking)

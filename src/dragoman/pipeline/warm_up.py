"""Stage `warm-up`: `seeds` and `sft` of any system, in folders of its own. What stage `pair` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.pipeline import seeds, sft
from dragoman.pipeline.project import Project
from dragoman.rollout.results import SAMPLES


@dataclass(frozen=True, kw_only=True)
class Options:
    system: Annotated[str, Doc("A system.")]
    out: Annotated[Path | None, Doc("Where it goes; results/pairs/SYSTEM-warm-up by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.results("pairs") / f"{self.system}-warm-up"


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Warm the system up; returns the metrics of both stages.

    Raises:
        UserError: no such system, or nothing to imitate.
    """
    out, own = options.folder(project), project.changed({"train.system": options.system})
    sampled = await seeds.run(own, seeds.Options(out=out / "seeds"))
    trained = await sft.run(own, sft.Options(samples=out / "seeds" / SAMPLES, out=out / "sft"))
    return {"seeds": sampled, "sft": trained}

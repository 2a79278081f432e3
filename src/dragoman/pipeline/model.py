"""Stage `model`: a plain model folder, the frozen LLM and the base of the proxy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

from dragoman.engines.fetch import fetch_model
from dragoman.pipeline.project import Project


@dataclass(frozen=True, kw_only=True)
class Options:
    out: Annotated[Path | None, Doc("Where the model goes; data/model by default.")] = None

    def folder(self, project: Project) -> Path:
        return self.out or project.model


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Fetch the model; returns its manifest.

    Raises:
        UserError: there is no such model.
    """
    return fetch_model(project.params.model.source, options.folder(project))

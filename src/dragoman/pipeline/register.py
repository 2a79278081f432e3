"""Stage `register`: what the training stages have left becomes versions of the proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.pipeline.decisions import settle
from dragoman.pipeline.project import Project


@dataclass(frozen=True, kw_only=True)
class Options: ...


async def run(project: Project, options: Options) -> dict[str, Any]:
    """The version of each stage of `policies` in params.yaml that has trained, by its name.

    Raises:
        UserError: a policy whose weights are not those that its manifest names.
    """
    settle(project.registry)
    versions = project.registry.register_stages(project.params.policies)
    return {version.name: version for version in versions}

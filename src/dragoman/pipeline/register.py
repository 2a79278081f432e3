"""Stage `register`: what the training stages have left becomes versions of the proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.pipeline.project import Project
from dragoman.registry import versions as registry


@dataclass(frozen=True, kw_only=True)
class Options: ...


async def run(project: Project, options: Options) -> dict[str, Any]:
    """The version of each stage of `policies` in params.yaml that has trained, by its name.

    Raises:
        UserError: a policy whose weights are not those that its manifest names.
    """
    results = project.root / "results"
    versions = registry.register_stages(project.params.policies, results, project.store, project.root)
    return {version.name: version for version in versions}

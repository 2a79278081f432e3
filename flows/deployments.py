"""Registers the deployments of `prefect.yaml`: `python -m flows.deployments`, in the project's folder.

Prefect makes the triggers of a deployment anew each time it is registered. One that waits for what does *not* happen then waits
from the beginning. So its deployment is registered only where it is missing, or where its entry of the file has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from prefect import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName


def main() -> None:
    """Ends with Prefect's exit code where it refuses one."""
    entries = yaml.safe_load(Path("prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    waiting = [entry for entry in entries if any(t["posture"] == "Proactive" for t in entry.get("triggers", ()))]
    _deploy(*(f"--name={entry['name']}" for entry in entries if entry not in waiting))
    for entry in waiting:
        version = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
        if version not in asyncio.run(_versions(entry["name"])):
            _deploy(f"--name={entry['name']}", f"--version={version}")


async def _versions(name: str) -> list[str | None]:
    """Of the deployments of that name which have their triggers."""
    named = DeploymentFilter(name=DeploymentFilterName(any_=[name]))
    async with get_client() as client:
        return [
            deployment.version
            for deployment in await client.read_deployments(deployment_filter=named)
            if await client.read_resource_related_automations(f"prefect.deployment.{deployment.id}")
        ]


def _deploy(*arguments: str) -> None:
    command: list[Any] = [Path(sys.executable).parent / "prefect", "--no-prompt", "deploy", *arguments]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


if __name__ == "__main__":
    main()

"""What the endpoint's traffic has become. The name of a run's state says it, and `Drifted` starts the deployment `nightly`."""

import json
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.states import Completed

from flows.commands import HOUR, publish, run

DRIFT = Path("results/drift")
DRIFTED = 4
"""The exit code of `dragoman drift` for traffic that is not what it was."""


@flow(name="drift", timeout_seconds=12 * HOUR)
async def drift() -> State:
    """Look for an alarm that was not there before. A policy gives one: what is trained next begins with a reference of its own."""
    before = _alarm()
    code = await run(["dragoman", "drift"], expected=(0, DRIFTED))
    await publish("drift", DRIFT / "table.md")
    if code != DRIFTED:
        return Completed(name="Steady")
    found = _alarm()
    if found == before:
        return Completed(name="Unchanged", message="the same alarm as before")
    return Completed(name="Drifted", message=f"policy {found['policy']}: first in {found['measure']}")


def _alarm() -> dict[str, Any]:
    path = DRIFT / "metrics.json"
    said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"policy": said["policy"], **said["alarm"]} if said.get("alarm") else {}

"""What the endpoint's traffic has become. The name of a run's state says it, and `Drifted` starts the deployment `nightly`."""

import json
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.states import Completed

from dragoman.core import exits
from flows.commands import HOUR, publish, run

DRIFT = Path("results/drift")
TOLD = DRIFT / "told.json"
"""When the latest alarm was of which a run has told. `dragoman drift` does not write it, so calling that by hand tells nobody."""


@flow(name="drift", timeout_seconds=12 * HOUR)
async def drift() -> State:
    """Look for an alarm of which no run has told. A policy gives one: what is trained next begins with a reference of its own."""
    code = await run(["dragoman", "drift"], expected=(0, exits.DRIFTED))
    await publish("drift", DRIFT / "table.md")
    if code != exits.DRIFTED:
        return Completed(name="Steady")
    found = _read(DRIFT / "metrics.json")
    alarm = found["alarm"]
    if alarm["at"] <= _read(TOLD).get("at", 0.0):  # also of an earlier champion, after a rollback
        return Completed(name="Unchanged", message="the same alarm as before")
    new = TOLD.with_suffix(".new")
    new.write_text(json.dumps({"at": alarm["at"]}), encoding="utf-8")
    new.replace(TOLD)  # whole or not at all
    return Completed(name="Drifted", message=f"policy {found['policy']}: first in {alarm['measure']}")


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return values

"""Evaluation of all systems, then the promotion gate."""

import json
from pathlib import Path

from prefect import State, flow
from prefect.states import Completed

from dragoman.core import exits
from flows.commands import HOUR, publish, reproduce, run

PROMOTE = Path("results/promote")


@flow(name="evaluate_and_promote", timeout_seconds=24 * HOUR)
async def evaluate_and_promote() -> State:
    """Evaluate what is stale, validate the data, and run the promotion gate. The state names its decision."""
    await reproduce("evaluate", "evaluate-policy", "report")
    await publish("report", Path("results/report/table.md"))
    await run(["dragoman", "validate"])
    before = _last_decision()
    code = await run(["dragoman", "promote"], expected=(0, exits.REFUSED))
    decision = _last_decision()
    if decision == before:
        return Completed(name="Unchanged", message="what was trained last is the champion, or was taken back")
    await publish("promotion", PROMOTE / "table.md")
    if code == exits.REFUSED:
        return Completed(name="Refused", message="; ".join(decision["reasons"]))
    return Completed(name="Promoted", message=f"{decision['challenger']} against {decision['against']}")


def _last_decision() -> dict:
    path = PROMOTE / "decision.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

"""Evaluation of all systems, then the promotion gate."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect import State, flow, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.states import Completed

from dragoman.core import exits
from flows.commands import HOUR, NIGHT, exclusive_access, publish, reproduce, run

PROMOTE = Path("results/promote")


@flow(name="evaluate_and_promote", timeout_seconds=24 * HOUR)
async def evaluate_and_promote() -> State:
    """Evaluate what is stale, validate the data, and run the promotion gate. The state names its decision.

    Beside a run of `nightly` there is nothing to do: that ends with the same.
    """
    if flow_run.parent_flow_run_id is None and await _ends_with_the_gate("nightly"):
        return Completed(name="Skipped", message="a run of nightly is under way, which ends with the gate")
    await reproduce("evaluate", "evaluate-policy", "report")
    await publish("report", Path("results/report/table.md"))
    await run(["dragoman", "validate"])
    async with exclusive_access():
        before = _last_decision()  # not before: while this one waited, another run may have decided
        code = await run(["dragoman", "promote"], expected=(0, exits.REFUSED), waits=False)
        decision = _last_decision()
    if decision == before:
        return Completed(name="Unchanged", message="what was trained last is the champion, or was taken back")
    await publish("promotion", PROMOTE / "table.md")
    if code == exits.REFUSED:
        return Completed(name="Refused", message="; ".join(decision["reasons"]))
    return Completed(name="Promoted", message=f"{decision['challenger']} against {decision['against']}")


async def _ends_with_the_gate(deployment: str) -> bool:
    """Whether a run of the deployment is under way that promotes. One whose machine died stays in state Running for ever."""
    named = DeploymentFilter(name=DeploymentFilterName(any_=[deployment]))
    running = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
        start_time=FlowRunFilterStartTime(after_=datetime.now(UTC) - timedelta(seconds=NIGHT)),
    )
    async with get_client() as client:
        runs = await client.read_flow_runs(deployment_filter=named, flow_run_filter=running)
    return any(run.parameters.get("promote", True) for run in runs)


def _last_decision() -> dict:
    path = PROMOTE / "decision.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

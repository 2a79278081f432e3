"""Stage `report`."""

from pathlib import Path

from prefect import flow

from flows.commands import HOUR, publish, reproduce


@flow(name="report", timeout_seconds=HOUR)
async def report() -> None:
    """The systems side by side."""
    await reproduce("report")
    await publish("report", Path("results/report/table.md"))

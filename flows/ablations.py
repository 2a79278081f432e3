"""Stage `ablations`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="ablations", timeout_seconds=48 * HOUR)
async def ablations() -> None:
    """The trained system with one part taken away: the variants that `ablations` in params.yaml lists."""
    await reproduce("ablations")

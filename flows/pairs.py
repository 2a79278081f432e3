"""Stage `pairs`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="pairs", timeout_seconds=96 * HOUR)
async def pairs() -> None:
    """Every system by every algorithm that `pairs` in params.yaml lists, each system from one warm-up of its own."""
    await reproduce("pairs")

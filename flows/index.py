"""Stage `index`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="index", timeout_seconds=2 * HOUR)
async def index() -> None:
    """The search index of each corpus."""
    await reproduce("index")

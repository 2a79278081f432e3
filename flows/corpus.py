"""Stage `corpus`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="corpus", timeout_seconds=1 * HOUR)
async def corpus() -> None:
    """Passages and questions, in one form."""
    await reproduce("corpus")

"""Stage `model`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="model", timeout_seconds=1 * HOUR)
async def model() -> None:
    """A plain model folder: the frozen LLM and the base of the proxy."""
    await reproduce("model")

"""Stages `evaluate` and `evaluate-policy`."""

from prefect import flow

from flows.commands import HOUR, reproduce


@flow(name="evaluate", timeout_seconds=12 * HOUR)
async def evaluate() -> None:
    """Every system on every dataset, untrained and with the policies of the training stages."""
    await reproduce("evaluate", "evaluate-policy")

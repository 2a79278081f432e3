"""Command `validate`."""

from pathlib import Path

from prefect import flow

from flows.commands import HOUR, publish, run


@flow(name="validate", timeout_seconds=HOUR)
async def validate() -> None:
    """All that is expected of corpora, questions and samples. What is not met fails the run, and is named in its log."""
    await run("dragoman validate")
    await publish("validate", Path("results/validate/metrics.json"))

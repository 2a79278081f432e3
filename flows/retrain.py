"""The nightly run: everything that is stale, from corpus to report, then the promotion gate."""

from prefect import State, flow
from prefect.states import Completed

from flows.commands import NIGHT, reproduce, training_state
from flows.evaluate_and_promote import evaluate_and_promote


@flow(name="retrain", timeout_seconds=NIGHT)
async def retrain(promote: bool = True) -> State:
    """`dvc repro`, then `evaluate_and_promote`, whose state is returned."""
    await reproduce()
    trained = await training_state("rl")
    if not promote:
        return trained
    verdict = await evaluate_and_promote(return_state=True)
    if not verdict.is_completed():
        return verdict
    collapse = f"{trained.message}; " if trained.name == "Collapsed" else ""
    return Completed(name=verdict.name, message=f"{collapse}{verdict.message}")

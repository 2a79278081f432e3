"""Stage `sft`."""

from prefect import State, flow

from flows.commands import HOUR, finished, reproduce


@flow(name="sft", timeout_seconds=12 * HOUR)
async def sft() -> State:
    """The warm-up on the seed trajectories."""
    await reproduce("sft")
    return await finished("sft")

"""Stage `seeds`."""

from prefect import State, flow

from flows.commands import HOUR, finished, reproduce


@flow(name="seeds", timeout_seconds=12 * HOUR)
async def seeds() -> State:
    """Seed trajectories, by rejection sampling from trees."""
    await reproduce("seeds")
    return await finished("seeds")

"""Stage `rl`."""

from prefect import State, flow

from flows.commands import HOUR, finished, reproduce


@flow(name="rl", timeout_seconds=24 * HOUR)
async def rl() -> State:
    """Reinforcement learning on tree rollouts, from the warm-up."""
    await reproduce("rl")
    return await finished("rl")

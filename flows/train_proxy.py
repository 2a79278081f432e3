"""From questions to a registered policy: sampling and reward scoring, warm-up, reinforcement learning."""

from prefect import State, flow

from flows.commands import HOUR, finished, reproduce, run


@flow(name="train_proxy", timeout_seconds=48 * HOUR)
async def train_proxy() -> State:
    """Train the proxy where it is stale. A run that was cut short goes on where it was."""
    await reproduce("seeds")
    await finished("seeds")
    await reproduce("sft")
    await finished("sft")
    await reproduce("rl")
    state = await finished("rl")
    await run("dragoman register")
    return state

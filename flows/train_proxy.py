"""From questions to a registered policy: seed trajectories, warm-up, reinforcement learning."""

from prefect import State, flow

from flows.commands import HOUR, reproduce, run, training_state


@flow(name="train_proxy", timeout_seconds=48 * HOUR)
async def train_proxy() -> State:
    """Train the proxy where it is stale. A run that was cut short goes on where it was."""
    await reproduce("seeds")
    await training_state("seeds")
    await reproduce("sft")
    await training_state("sft")
    await reproduce("rl")
    state = await training_state("rl")
    await run(["dragoman", "register"])
    return state

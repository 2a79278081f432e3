"""A system trained by an algorithm, on demand: warm-up, training, and both policies on the same questions."""

from pathlib import Path

from prefect import State, flow

from flows.commands import HOUR, publish, reproduce, training_state


@flow(name="pair", timeout_seconds=96 * HOUR)
async def pair(system: str = "mrag", algorithm: str = "selftrain") -> State:
    """Do what is stale of a pair that `pairs` in params.yaml names. Training that was cut short goes on where it was."""
    name = f"{system}-{algorithm}"
    await reproduce(f"pairs@{name}")
    folder = Path("results/pairs") / name
    state = await training_state("pair", folder / "rl")
    await publish("pair-scores", folder / "evaluate" / "table.md")
    return state

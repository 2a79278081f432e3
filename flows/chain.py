"""The chain of MAPS, on demand: a policy for each of its agents, step by step."""

from pathlib import Path
from typing import get_args

from prefect import State, flow
from prefect.states import Completed

from dragoman.training.settings import TRAINED, ChainStep
from flows.commands import HOUR, publish, reproduce, training_state


@flow(name="chain", timeout_seconds=96 * HOUR)
async def chain(dataset: str = "atlas") -> State:
    """Do what is stale of the chain on a dataset, which `chains` in params.yaml names. A step that was cut short goes on where it was."""
    folder = Path("results/chain") / dataset
    collapsed = []
    for step in get_args(ChainStep):
        await reproduce(f"chain-{step}@{dataset}")
        if step in TRAINED:
            state = await training_state(f"chain-{step}", folder / step)
            collapsed += [state.message] if state.name == "Collapsed" else []
    await publish("chain", folder / "evaluate" / "table.md")
    return Completed(name="Collapsed", message="; ".join(map(str, collapsed))) if collapsed else Completed()

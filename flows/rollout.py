"""Command `rollout`, on demand."""

from pathlib import Path

from prefect import flow
from pydantic import PositiveInt

from flows.commands import HOUR, publish, run


@flow(name="rollout", timeout_seconds=12 * HOUR)
async def rollout(
    system: str = "c3po@champion",
    dataset: str = "atlas",
    limit: PositiveInt = 50,
    samples: PositiveInt | None = None,
    seed: int = 0,
    out: str = "results/rollout",
) -> None:
    """Trees of a system on training questions, or so many single trajectories (`samples`) of each."""
    kind = "--tree" if samples is None else f"--samples {samples}"
    await run(
        f"dragoman rollout --system {system} {kind} --dataset {dataset} --limit {limit} --seed {seed} --out {out}"
    )
    await publish("rollout", Path(out) / "metrics.json")

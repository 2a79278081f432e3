"""Command `synthesize`, on demand: questions for a corpus that has none, beside those of the pipeline."""

from pathlib import Path
from typing import Literal

from prefect import flow
from pydantic import PositiveInt

from flows.commands import HOUR, publish, run


@flow(name="synthesize", timeout_seconds=12 * HOUR)
async def synthesize(
    dataset: str = "atlas",
    n: PositiveInt = 200,
    backend: Literal["grounded", "engine", "mixed"] = "grounded",
    seed: int = 0,
    out: str = "results/synthesize-on-demand",
) -> None:
    """Write `n` checked questions about a dataset."""
    asked = [f"--dataset={dataset}", f"--n={n}", f"--backend={backend}", f"--seed={seed}", f"--out={out}"]
    await run(["dragoman", "synthesize", *asked])
    await publish("synthesize", Path(out) / "metrics.json")

"""A command that puts questions to systems, on demand: whole, or in shards that a task runner spreads over threads or a cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from prefect import flow
from pydantic import NonNegativeFloat, PositiveInt

from flows.commands import HOUR, flags, publish, run
from flows.side_by_side import Runner, side_by_side

Command = Literal["rollout", "seeds", "evaluate", "bench"]


@flow(name="in-shards", timeout_seconds=24 * HOUR)
async def in_shards(
    command: Command,
    out: str,
    options: Mapping[str, bool | int | float | str] = {},
    shards: PositiveInt = 1,
    runner: Runner = "threads",
    gpus: NonNegativeFloat = 0,
) -> None:
    """Run the command, with results in the folder `out`.

    `options` are the command's, without dashes before them: `{"systems": "direct,c3po", "limit": 200, "track": false}`. With
    more than one shard, each is a process with its own models, started by `runner`, and the results are merged. `gpus` is how
    many Ray reserves for a shard.
    """
    asked = ["dragoman", command, *flags(options), f"--out={out}"]
    if shards == 1:
        await run(asked)
    else:
        parts = [[*asked, f"--shard={number}/{shards}"] for number in range(1, shards + 1)]
        for failure in await side_by_side(parts, runner, gpus=gpus):
            if failure is not None:
                raise failure
        await run([*asked, f"--merge={shards}"])
    table = Path(out) / "table.md"
    await publish(command, table if table.is_file() else table.with_name("metrics.json"))

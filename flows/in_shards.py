"""A command that puts questions to systems, on demand: whole, or in shards that a task runner spreads over threads or a cluster."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from prefect import flow, task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import NonNegativeFloat, PositiveInt

from flows.commands import COMMAND_TASK, HOUR, exclusive_access, execute, publish, run, terminate_running

Command = Literal["rollout", "seeds", "evaluate", "bench"]
Runner = Literal["threads", "dask", "ray"]


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
    asked = ["dragoman", command, *_flags(options), f"--out={out}"]
    if shards == 1:
        await run(asked)
    else:
        await _shards(asked, shards, runner, gpus)
        await run([*asked, f"--merge={shards}"])
    table = Path(out) / "table.md"
    await publish(command, table if table.is_file() else table.with_name("metrics.json"))


def _flags(options: Mapping[str, bool | int | float | str]) -> list[str]:
    """As a person types them: `--limit=200`, `--tree`, `--no-track`. Each is one argument, whatever its value."""
    return [
        f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in options.items()
    ]


@task(**COMMAND_TASK)
async def shard(command: Sequence[str], folder: str) -> int:
    """One of the shards. They run beside each other, so the flow and not the task keeps other commands waiting."""
    return await execute(command, folder=folder)


async def _shards(command: Sequence[str], shards: int, runner: Runner, gpus: float) -> None:
    commands = [[*command, f"--shard={number}/{shards}"] for number in range(1, shards + 1)]
    async with exclusive_access():
        with ExitStack() as stack:
            pool = stack.enter_context(task_runner(runner))
            if runner == "ray" and gpus:
                from prefect_ray.context import remote_options

                stack.enter_context(remote_options(num_gpus=gpus))
            futures = [pool.submit(shard, {"command": each, "folder": str(Path.cwd())}) for each in commands]
            try:
                # in a thread: this one renews the lease of the limit
                await asyncio.to_thread(lambda: [future.wait() for future in futures])
            finally:
                terminate_running()
            for future in futures:
                future.result()


def task_runner(name: Runner) -> TaskRunner[Any]:
    """Threads of this process; or the cluster that RAY_ADDRESS or DASK_SCHEDULER_ADDRESS names, or one on this machine."""
    if name == "ray":
        from prefect_ray import RayTaskRunner

        return RayTaskRunner(init_kwargs={} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False})
    if name == "dask":
        from prefect_dask import DaskTaskRunner

        if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
            return DaskTaskRunner(address=address)
        # workers as threads: a shard is a process of its own already
        return DaskTaskRunner(cluster_kwargs={"processes": False, "dashboard_address": None})
    return ThreadPoolTaskRunner()

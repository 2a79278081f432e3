"""Command `rollout`, on demand: whole, or in shards that a task runner spreads over threads or a cluster."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from prefect import flow, task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import NonNegativeFloat, PositiveInt

from flows.commands import COMMAND_TASK, HOUR, exclusive_access, execute, publish, run, terminate_running

Runner = Literal["threads", "dask", "ray"]


@flow(name="rollout", timeout_seconds=12 * HOUR)
async def rollout(
    system: str = "c3po@champion",
    dataset: str = "atlas",
    limit: PositiveInt = 50,
    samples: PositiveInt | None = None,
    seed: int = 0,
    out: str = "results/rollout",
    shards: PositiveInt = 1,
    runner: Runner = "threads",
    gpus: NonNegativeFloat = 0,
) -> None:
    """Trees of a system on training questions, or `samples` single trajectories for each of them.

    With more than one shard, each is a process with its own models, started by `runner`, and the results are merged.
    `gpus` is how many Ray reserves for a shard.
    """
    kind = ["--tree"] if samples is None else [f"--samples={samples}"]
    asked = [f"--system={system}", *kind, f"--dataset={dataset}", f"--limit={limit}", f"--seed={seed}", f"--out={out}"]
    command = ["dragoman", "rollout", *asked]
    if shards == 1:
        await run(command)
    else:
        await _in_shards(command, shards, runner, gpus)
        await run([*command, f"--merge={shards}"])
    await publish("rollout", Path(out) / "metrics.json")


@task(**COMMAND_TASK)
async def shard(command: Sequence[str], folder: str) -> int:
    """One of the shards. They run beside each other, so the flow and not the task keeps other commands waiting."""
    return await execute(command, folder=folder)


async def _in_shards(command: Sequence[str], shards: int, runner: Runner, gpus: float) -> None:
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

"""Commands beside each other, which for the rest of the project are one: on threads of this process, or on a cluster."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.commands import COMMAND_TASK, exclusive_access, execute, terminate_running

Runner = Literal["threads", "dask", "ray"]


@task(**COMMAND_TASK)
async def beside_others(command: Sequence[str], folder: str) -> int:
    """One of the commands. The flow and not the task keeps what else there is waiting."""
    return await execute(command, folder=folder)


async def side_by_side(
    commands: Sequence[Sequence[str]], runner: Runner, *, gpus: float = 0, at_once: int | None = None
) -> list[Exception | None]:
    """Run all of them to their ends, whatever becomes of the others.

    Args:
        gpus: how many Ray reserves for each.
        at_once: how many this machine runs at a time. A cluster that is named decides by itself.

    Returns:
        What each has failed with, in their order; None where it has not.
    """
    async with exclusive_access():
        with ExitStack() as stack:
            pool = stack.enter_context(task_runner(runner, at_once))
            if runner == "ray" and gpus:
                from prefect_ray.context import remote_options

                stack.enter_context(remote_options(num_gpus=gpus))
            futures = [pool.submit(beside_others, {"command": each, "folder": str(Path.cwd())}) for each in commands]
            try:
                # in a thread: this one renews the lease of the limit
                await asyncio.to_thread(lambda: [future.wait() for future in futures])
            finally:
                terminate_running()
            return [_failure(future) for future in futures]


def _failure(finished: Any) -> Exception | None:
    try:
        finished.result()
    except Exception as error:  # of the command, or of the machine it ran on
        return error
    return None


def task_runner(name: Runner, at_once: int | None = None) -> TaskRunner[Any]:
    """Threads of this process; or the cluster that RAY_ADDRESS or DASK_SCHEDULER_ADDRESS names, or one on this machine."""
    if name == "ray":
        from prefect_ray import RayTaskRunner

        here = {"include_dashboard": False, "num_cpus": at_once}
        return RayTaskRunner(init_kwargs={} if "RAY_ADDRESS" in os.environ else here)
    if name == "dask":
        from prefect_dask import DaskTaskRunner

        if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
            return DaskTaskRunner(address=address)
        # workers as threads: a command is a process of its own already
        workers = {} if at_once is None else {"n_workers": at_once, "threads_per_worker": 1}
        return DaskTaskRunner(cluster_kwargs={"processes": False, "dashboard_address": None, **workers})
    return ThreadPoolTaskRunner(max_workers=at_once)

"""`--processes N`: the shards of a command side by side on this machine, each on processors of its own, then merged.

The processors that compute one small model wait for each other at every operation. Those of processes with models of their own do not.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dragoman.core import exits
from dragoman.core.errors import Fault, UserError
from dragoman.pipeline.inputs import ShardOptions
from dragoman.rollout.shards import Shard

Opt = TypeVar("Opt", bound=ShardOptions)

log = logging.getLogger(__name__)

_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


async def divided(options: Opt, out: Path) -> Opt:
    """Run the shards that `--processes` asks for, by the words of this command.

    Args:
        out: the folder of the whole. The log of every shard but the first lies in it, as `shards/I-of-N.log`.

    Returns:
        Options that put the finished shards together; those that were given, where it asks for none.

    Raises:
        UserError: fewer processors than processes, or what a shard has refused.
        Fault: a shard has failed. What is finished is kept.
    """
    if options.processes == 1:
        return options
    options.part()  # a bad one is refused before anything is started
    of, cores = options.processes, sorted(os.sched_getaffinity(0))
    if of > len(cores):
        raise UserError(f"--processes {of}: each wants a processor, and there are {len(cores)}; take so many at most")
    shards = Shard.all(of)
    (out / "shards").mkdir(parents=True, exist_ok=True)
    with ExitStack() as logs:
        started: list[asyncio.subprocess.Process] = []
        try:
            for shard in shards:
                started.append(await _start(shard, cores, _log(shard, out), logs))
            codes = await asyncio.gather(*map(_ended, shards, started))
        finally:  # Ctrl-C reaches this process alone
            for process in started:
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
            await asyncio.gather(*(process.wait() for process in started))
    if failed := [(shard, code) for shard, code in zip(shards, codes, strict=True) if code]:
        shard, code = failed[-1]  # the first shard has none of the logs: what it says is on the screen
        end = f"it was killed by signal {-code}" if code < 0 else f"it has ended with exit code {code}"
        said = _last_error(_log(shard, out)) or end
        raise (UserError if code == exits.BAD_INPUT else Fault)(f"shard {shard}: {said}")
    return replace(options, processes=1, merge=of)


def share(cores: Sequence[int], shard: Shard) -> list[int]:
    """The processors of a shard: neighbours, and as many as any other shard has, or one more."""
    first, end = (len(cores) * number // shard.of for number in (shard.number - 1, shard.number))
    return list(cores[first:end])


def environment(cores: Sequence[int], shard: Shard, gpus: int) -> Mapping[str, str]:
    """What a shard's process is told: how many threads to compute with, and of several GPUs which one is its own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:gpus] if visible else [str(number) for number in range(gpus)]
    own = {"CUDA_VISIBLE_DEVICES": names[(shard.number - 1) % gpus]} if gpus > 1 else {}
    return {"OMP_NUM_THREADS": str(len(cores)), "MKL_NUM_THREADS": str(len(cores)), **own}


async def _ended(shard: Shard, process: asyncio.subprocess.Process) -> int:
    """The exit code of a shard. Where it was killed, that is told at once."""
    code = await process.wait()
    if code < 0:  # such as for want of memory, hours before the others end
        log.warning(
            "shard %s was killed by signal %d; the others go on, and then the same command does its rest", shard, -code
        )
    return code


async def _start(shard: Shard, cores: Sequence[int], log: Path, logs: ExitStack) -> asyncio.subprocess.Process:
    """Start a shard. The first one shows its progress here, since each has the same share of the questions."""
    import torch

    own, libc = share(cores, shard), ctypes.CDLL(None)
    errors = None if shard.number == 1 else logs.enter_context(log.open("w", encoding="utf-8"))

    def settle() -> None:
        os.sched_setaffinity(0, own)
        libc.prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGTERM)

    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "dragoman"),
        *sys.argv[1:],
        *("--processes", "1", "--shard", str(shard)),  # the last of a flag counts
        stdout=asyncio.subprocess.DEVNULL,
        stderr=errors,
        env=os.environ | environment(own, shard, torch.cuda.device_count()),
        preexec_fn=settle,
        start_new_session=True,
    )


def _log(shard: Shard, out: Path) -> Path:
    return shard.folder(out).with_suffix(".log")


def _last_error(log: Path) -> str:
    """What a shard has said of its end, if it has a log and has said anything."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")

"""What all flows are made of: a task that runs one command of the project, and artifacts of the files it wrote.

Commands read and write folders that DVC manages. So at most one runs at a time, in whatever flow: the global concurrency
limit `dvc` sees to it. A command that fails is tried again after a wait, unless its input was bad, which needs a person.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from prefect import get_client, get_run_logger, task
from prefect.artifacts import acreate_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.asyncio import AcquireConcurrencySlotTimeoutError, concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import task_run
from prefect.states import Completed

from dragoman.core import exits
from dragoman.core.settings import flatten
from dragoman.core.tables import table_lines
from flows import tied

LIMIT = "dvc"
RETRIES = 2
WAITS = [30.0, 300.0]
HOUR = 3600
NIGHT = 48 * HOUR
"""The longest that a run of `nightly` may take."""
WAIT = 10.0 * HOUR
"""Longer than a night's training, and short enough that a place which nobody gives back is seen before the next night."""
GRACE = 20.0
"""Seconds between asking a command to end and ending it."""
LAST_LINES = 15
LONGEST_LINE = 1 << 16
REFUSED_BY_DVC = re.compile(
    r"Stage '.+' not found|failed to parse '.+' in '.+'|dvc\.(yaml|lock)' (is invalid|validation failed)"
    r"|unable to read: '.+', YAML file|Same item\(s\) are defined|output '.+' is (specified in|already tracked by SCM)"
)
"""What DVC says of stages and settings that only a person can mend. It ends with the same code as after a stage that failed."""
_running: set[int] = set()
"""Process ids of the commands under way."""


class StillTaken(Exception):
    """Another command has run for so long, or nobody has given back its place."""


class CommandFailed(Exception):
    """A command ended with an unexpected exit code. The message ends with the last lines of its output."""

    def __init__(self, command: Sequence[str], code: int, last: Sequence[str]) -> None:
        super().__init__(command, code, last)  # pickle makes it again from these
        self.command, self.code, self.last = command, code, last

    def __str__(self) -> str:
        return f"{' '.join(self.command)}: exit code {self.code}\n" + "\n".join(self.last)

    @property
    def retriable(self) -> bool:
        stages = [
            int(found) for line in self.last for found in re.findall(r"exited with (\d+)", line)
        ]  # as DVC reports it
        cancelled = self.code == -signal.SIGTERM
        refused = any(map(REFUSED_BY_DVC.search, self.last))
        return exits.BAD_INPUT not in (self.code, *stages) and not refused and not cancelled


def retriable(_: Any, __: TaskRun, state: State) -> bool:
    """Whether a failed task may be tried again, in the form in which Prefect asks."""
    return isinstance(state.data, CommandFailed) and state.data.retriable


COMMAND_TASK: dict[str, Any] = {
    "task_run_name": lambda: shlex.join(task_run.parameters["command"]),
    "retries": RETRIES,
    "retry_delay_seconds": WAITS,
    "retry_condition_fn": retriable,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""The options of a task that runs a `command`."""


@task(**COMMAND_TASK)
async def run(command: Sequence[str], expected: tuple[int, ...] = (0,), waits: bool = True) -> int:
    """Run a command while no other one runs, with its output in the log. Returns its exit code.

    Args:
        command: a program and its arguments. It is never split, so no parameter of a flow can become a second argument.
        expected: exit codes that are no failure.
        waits: False where the caller has `exclusive_access`.

    Raises:
        CommandFailed: the code is none of `expected`.
    """
    async with exclusive_access() if waits else nullcontext():
        return await execute(command, expected)


@asynccontextmanager
async def exclusive_access() -> AsyncIterator[None]:
    """Wait until no other command of the project runs, and keep others waiting."""
    async with get_client() as client:
        with suppress(ObjectAlreadyExists):  # made by another run at the same moment
            await client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
    # hours of work must not end because the server was away for a while; DVC's own lock still holds
    waited = concurrency(LIMIT, strict=True, timeout_seconds=WAIT, raise_on_lease_renewal_failure=False)
    try:
        await waited.__aenter__()
    except AcquireConcurrencySlotTimeoutError:
        raise StillTaken(
            f"the limit {LIMIT!r} was taken for {WAIT / HOUR:g} hours. If no other flow runs, its holder is dead: `make up` frees it"
        ) from None
    async with AsyncExitStack() as stack:
        stack.push_async_exit(waited)
        yield


async def execute(command: Sequence[str], expected: Sequence[int] = (0,), folder: str | None = None) -> int:
    """Run a command and log its output. When the caller is cancelled, timed out or killed, so are the command and its children.

    Args:
        folder: the project's, where this process is in another one.

    Returns:
        The exit code.

    Raises:
        CommandFailed: the code is none of `expected`.
    """
    logger = get_run_logger()
    last: deque[str] = deque(maxlen=LAST_LINES)
    programs = Path(os.environ.get("DRAGOMAN_BIN") or Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        tied.__file__,
        programs / command[0],
        *command[1:],
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    _running.add(process.pid)
    try:
        async for line in _lines(process.stdout):
            if line:
                logger.info(line)
                last.append(line)
        code = await process.wait()
    finally:
        _running.discard(process.pid)  # first, since the rest takes time and may be cancelled again
        if process.returncode is None:
            await _terminate(process)
    if code not in expected:
        raise CommandFailed(command, code, list(last))
    return code


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of an output as a terminal has them at last, without what was written over. Of a longer one the last 64 KiB."""
    begun = b""
    while read := await stream.read(LONGEST_LINE):
        *ended, begun = (begun + read).split(b"\n")
        for line in ended:
            yield _as_seen(line)
        begun = begun[-LONGEST_LINE:]
    yield _as_seen(begun)


def _as_seen(line: bytes) -> str:
    return line[-LONGEST_LINE:].decode(errors="replace").rstrip().rpartition("\r")[2]


def flags(options: Mapping[str, bool | int | float | str]) -> list[str]:
    """As a person types them: `--limit=200`, `--tree`, `--no-track`. Each is one argument, whatever its value."""
    return [
        f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in options.items()
    ]


def terminate_running() -> None:
    """Terminate every command of this process: tasks in other threads are not told that their flow was cancelled."""
    for pid in tuple(_running):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)


async def _terminate(process: asyncio.subprocess.Process) -> None:
    for ending, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(TimeoutError):
            await asyncio.shield(asyncio.wait_for(process.wait(), wait))
            return


async def reproduce(*stages: str) -> None:
    """`dvc repro` of the stages and of what they depend on, or of the whole pipeline when none is named."""
    await run(["dvc", "--wait-for-lock", "repro", *stages])


async def publish(key: str, path: Path) -> None:
    """Show a Markdown file, or figures in a JSON file, as an artifact of the run."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = ([name, str(value)] for name, value in flatten(json.loads(text)).items())
        text = "\n".join(table_lines([str(path), ""], rows)) + "\n"
    await acreate_markdown_artifact(key=key, markdown=text, description=str(path))


async def training_state(stage: str, folder: Path | None = None) -> State:
    """Publish the figures of a training stage, and return the state of its run: `Collapsed` where training stopped early.

    Args:
        folder: the stage's, where that is not `results/STAGE`.
    """
    path = (folder or Path("results") / stage) / "metrics.json"
    await publish(stage, path)
    stopped = json.loads(path.read_text(encoding="utf-8")).get("stopped")
    return (
        Completed(name="Collapsed", message=f"{stage}: {stopped}; the best policy so far is kept")
        if stopped
        else Completed()
    )

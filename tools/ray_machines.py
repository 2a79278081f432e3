"""A Ray cluster as several machines make it: a head that computes nothing and workers of their own, each a family of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tools.ports import free_port

PATIENCE = 600.0
"""Seconds."""
SMALLEST_STORE = 80_000_000
"""Bytes of memory for objects; Ray takes no less, and nothing is kept there."""


class Machines:
    """Machines that `ray start` made, at ports of their own on this one.

    Args:
        temporary: where they keep logs and sockets. Names of sockets have a limit, so it has to be short.
        environment: of all of them, beside this process's own.
    """

    def __init__(self, temporary: Path, environment: Mapping[str, str]) -> None:
        self.temporary, self.environment = temporary, os.environ | environment
        self.host = _address(0)
        self.port = free_port(self.host)
        self.address = f"{self.host}:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_head(self) -> None:
        ports = f"--port={self.port}", f"--ray-client-server-port={free_port(self.host)}"
        self._start("--head", *ports, "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats")
        until(self._listens, lambda: f"the head listens: {self.logs()}")

    def start_worker(self, core: int | None = None) -> None:
        """One of a single processor: that of the given number, or any."""
        self._start(f"--address={self.address}", "--num-cpus=1", core=core)

    def _start(self, *options: str, core: int | None = None) -> None:
        number = len(self.processes)
        own = self.temporary / str(number)
        own.mkdir()
        command = [
            str(Path(sys.executable).parent / "ray"),
            *("start", "--block", f"--node-ip-address={_address(number)}", f"--temp-dir={own}"),
            f"--object-store-memory={SMALLEST_STORE}",
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),  # any that is free
            *options,
        ]
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        with (own / "start.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [*pinned, *command], env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _listens(self) -> bool:
        assert self.processes[0].poll() is None, self.logs()
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
            return True
        return False

    def kill_who_runs(self, argument: str) -> None:
        """Kill -9 a machine and all that runs on it: the one that runs a command with this argument."""
        for machine in self.processes:
            family = _family(machine.pid)
            if any(argument in _words(process) for process in family):
                _end(family)
                return
        raise AssertionError(f"no machine runs {argument}")

    def close(self) -> None:
        for machine in reversed(self.processes):
            _end(_family(machine.pid))
            machine.wait()

    def logs(self) -> str:
        """The end of what each machine has said."""
        said = [*self.temporary.glob("*/start.log"), *self.temporary.glob("*/session_latest/logs/raylet.out")]
        return "\n".join(f"{path}: {path.read_text()[-2000:]}" for path in sorted(said))


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what()}"
        time.sleep(0.05)


def _address(number: int) -> str:
    """That of a machine on the loop of this one. Ray takes 127.0.0.1 for the address that others see."""
    return f"127.0.0.{2 + number}"


def _family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _words(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has gone."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def _end(family: list[psutil.Process]) -> None:
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()

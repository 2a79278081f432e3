"""`make up` and `make down`: Prefect server, worker and MLflow server on this machine, for this project alone.

Everything listens on loopback and keeps its state in the project: Prefect in `.prefect/`, MLflow in `mlruns/`, and in
`.services/` a log and a record of each process. The record holds the process's start time beside its id, so that `down` ends
exactly the processes that `up` has started, even when their ids have been given to others since. Both can be called twice.

    python tools/services.py up --prefect-port 4200 --mlflow-port 5000
    python tools/services.py down
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil

from dragoman import tracking

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
POOL = "dragoman"
LIMIT = "dvc"
START = 180.0
"""Seconds that a server may take to answer."""
STOP = 30.0
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a handful of processes for jobs that nobody has
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
}


class Services:
    """The services of the project in a folder."""

    def __init__(self, project: Path, prefect_port: int, mlflow_port: int) -> None:
        self.project, self.prefect_port, self.mlflow_port = project, prefect_port, mlflow_port
        self.folder = project / ".services"
        self.prefect_url = f"http://{HOST}:{prefect_port}"
        self.mlflow_url = f"http://{HOST}:{mlflow_port}"
        self.environment = os.environ | QUIET | {
            "PWD": str(project),  # prefect.yaml asks for it
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PREFECT_HOME": str(project / ".prefect"),
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            # who may start a flow runs commands as you, and a page in a browser reaches loopback
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self.prefect_url,
            # in memory, leases are lost with the server, and a slot that was taken then is never given back
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }  # fmt: skip
        self.login = self.folder / "prefect.login"

    def up(self) -> None:
        """Start what does not run, register the deployments, and say where everything is."""
        self._refuse_other_ports()
        self.folder.mkdir(exist_ok=True)
        self._log_in()
        (self.project / "mlruns").mkdir(exist_ok=True)
        self._serve(
            "prefect",
            f"{self.prefect_url}/api/health",
            "server",
            "start",
            "--host",
            HOST,
            "--port",
            str(self.prefect_port),
        )
        tracking.follow_folder(self.project / "mlruns")
        store = f"sqlite:///{self.project / 'mlruns/mlflow.db'}"
        artifacts = (self.project / "mlruns/artifacts").as_uri()
        self._serve(
            "mlflow", f"{self.mlflow_url}/health", "server", "--host", HOST, "--port", str(self.mlflow_port), "--workers", "1",
            "--backend-store-uri", store, "--default-artifact-root", artifacts,
            "--allowed-hosts", f"{HOST}:{self.mlflow_port},localhost:{self.mlflow_port}",
            "--cors-allowed-origins", self.mlflow_url,
        )  # fmt: skip
        self._run("work-pool", "create", POOL, "--type", "process", "--overwrite")
        self._run("gcl", "create", LIMIT, "--limit", "1", already="already exists")
        if not self._runs_under_way():
            self._run("gcl", "update", LIMIT, "--active-slots", "0")  # whoever had taken it is dead
        self._run("deploy", "--all")
        if self._running("worker") is None:
            self._start(
                "worker", BIN / "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", POOL
            )
        say(f"Prefect  {self.prefect_url}")
        say(f"MLflow   {self.mlflow_url}")
        say(f"worker   of the pool {POOL}; log {self.folder / 'worker.log'}")
        say(f"login    {self.login}; Prefect's pages ask for what is in it")
        say(
            f'run one: PREFECT_API_AUTH_STRING="$(cat {self.login})" PREFECT_API_URL={self.prefect_url}/api '
            f"{BIN / 'prefect'} deployment run retrain/nightly"
        )

    def down(self) -> None:
        """End what `up` has started: the worker first, so that its runs can report to the server."""
        ended = [name for name in ("worker", "mlflow", "prefect") if self._end(name)]
        say(f"ended: {', '.join(ended)}" if ended else "nothing was running")

    def _runs_under_way(self) -> bool:
        """Whether a flow runs in this project. It is a process of its own, which outlives its worker."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "prefect" in " ".join(process.cmdline()) and process.cwd() == str(self.project):
                    words = process.cmdline()
                    if "flow-run" in words or any("engine" in word for word in words):
                        return True
        return False

    def _log_in(self) -> None:
        """Let Prefect's server, and all that we start beside it, share a secret. It is made once, and only we can read it."""
        with suppress(FileExistsError):
            descriptor = os.open(self.login, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, f"dragoman:{secrets.token_urlsafe(24)}".encode())
            os.close(descriptor)
        login = self.login.read_text()
        self.environment |= {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}

    def _refuse_other_ports(self) -> None:
        """What runs stays where it is: half of it at new ports would be a worker that asks a server which is not there."""
        asked = {"prefect": self.prefect_port, "mlflow": self.mlflow_port}
        runs = {name: port for name in asked if (port := self._port(name)) is not None}
        if any(asked[name] != port for name, port in runs.items()):
            where = ", ".join(f"{name} at http://{HOST}:{port}" for name, port in runs.items())
            same = " ".join(f"{name.upper()}_PORT={port}" for name, port in runs.items())
            sys.exit(f"error: running already: {where}; nothing was changed. To move it `make down` first, to start what "
                     f"is missing beside it `make up {same}`")  # fmt: skip

    def _port(self, name: str) -> int | None:
        """Where a service listens that `up` has started, if it still runs."""
        if self._running(name) is None:
            return None
        command = json.loads((self.folder / f"{name}.json").read_text())["command"]
        return int(command[command.index("--port") + 1])

    def _serve(self, name: str, health: str, *arguments: str) -> None:
        """Start a server unless it runs, and wait until it answers."""
        process = self._running(name)
        if process is None:
            port = int(health.split(":")[2].partition("/")[0])
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    sys.exit(f"error: port {port} is taken by something that `make up` has not started; end it, or choose "
                             f"another: make up {name.upper()}_PORT={port + 1}")  # fmt: skip
            process = self._start(name, BIN / name, *arguments)
        deadline = time.monotonic() + START
        while not answers(health):
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
                sys.exit(f"error: {name} does not answer at {health}; see {self.folder / name}.log")
            time.sleep(0.3)

    def _start(self, name: str, *command: str | Path) -> psutil.Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                command, cwd=self.project, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        process = psutil.Process(started.pid)
        record = {"pid": started.pid, "created": process.create_time(), "command": [str(part) for part in command]}
        (self.folder / f"{name}.json").write_text(json.dumps(record))
        return process

    def _running(self, name: str) -> psutil.Process | None:
        """The process that `up` has started as this service, if it still runs."""
        with suppress(FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
            record = json.loads((self.folder / f"{name}.json").read_text())
            process = psutil.Process(record["pid"])
            if process.create_time() == record["created"] and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def _end(self, name: str) -> bool:
        process = self._running(name)
        if process is not None:
            family = [process, *process.children(recursive=True)]
            process.terminate()
            psutil.wait_procs([process], timeout=STOP)
            for left in family:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            psutil.wait_procs(family, timeout=5)
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        return process is not None

    def _run(self, *arguments: str, already: str = "") -> None:
        done = subprocess.run(
            [BIN / "prefect", "--no-prompt", *arguments], cwd=self.project, env=self.environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        words = done.stdout + done.stderr
        if done.returncode and not (already and already in words):
            sys.exit(f"error: prefect {' '.join(arguments)}\n{words.strip()}")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Start or end the project's services on this machine.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--project", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    options = parser.parse_args()
    services = Services(options.project.resolve(), options.prefect_port, options.mlflow_port)
    services.up() if options.action == "up" else services.down()


if __name__ == "__main__":
    main()

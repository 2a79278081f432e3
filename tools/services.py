"""`make up`, `make down` and `make ui`: Prefect server, worker and MLflow server on this machine, for this project alone.

Everything listens on loopback and keeps its state in the project: Prefect in `.prefect/`, MLflow in `mlruns/`, and in
`.services/` a log and a record of each process, and the logins of both servers. The record holds the process's start time
beside its id, so that `down` ends exactly the processes that `up` has started, even when their ids have been given to others
since. Both can be called twice. `ui` has a record too, so that no other MLflow takes the file of its login.

    python tools/services.py up --prefect-port 4200 --mlflow-port 5000
    python tools/services.py down
    python tools/services.py ui --mlflow-port 5000     # `make ui`: MLflow alone, until it is interrupted
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from dragoman import QUIET, tracking

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
POOL = "dragoman"
LIMIT = "dvc"
START = 600.0
"""Seconds that a server may take to answer."""
STOP = 30.0
CLOCK = 5.0
"""Seconds by which the same start time may be read differently: it is reckoned from the clock, which is set now and then."""
MOST_LOGGED = 50_000_000
"""Bytes of a log. A larger one is put aside when its service starts, and takes the place of the one before."""
USERS = {"prefect": "dragoman", "mlflow": "owner"}
"""Who logs in. MLflow keeps the name of a user from queues of reviews, and ours is called dragoman."""
LOGIN_OF_MLFLOW = """\
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///.services/mlflow-users.db
auth_cache_ttl_seconds = 3600
"""
"""Checking a password takes a tenth of a second on purpose, so one that was right is remembered."""


class Services:
    """The services of the project in a folder."""

    def __init__(self, project: Path, prefect_port: int, mlflow_port: int) -> None:
        self.project, self.prefect_port, self.mlflow_port = project, prefect_port, mlflow_port
        self.folder = project / ".services"
        self.prefect_url = f"http://{HOST}:{prefect_port}"
        self.mlflow_url = f"http://{HOST}:{mlflow_port}"
        self.environment = os.environ | QUIET | {  # whatever the shell says of these
            "PWD": str(project),  # prefect.yaml asks for it
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PREFECT_HOME": str(project / ".prefect"),
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            "PREFECT_API_REQUEST_TIMEOUT": "180",  # beside training, on a slow disk, the server may need more than the usual 60 s
            # who may start a flow runs commands as you, and a page in a browser reaches loopback
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self.prefect_url,
            # in memory, leases are lost with the server, and a slot that was taken then is never given back
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        }  # fmt: skip

    def up(self) -> None:
        """Start what does not run, register the deployments, and say where everything is."""
        self._refuse_other_ports()
        self._refuse_beside_pages()
        self._log_in()
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
        self._serve("mlflow", f"{self.mlflow_url}/health", *self._mlflow(), **self._guard())
        self._run("work-pool", "create", POOL, "--type", "process", "--overwrite")
        if not self._runs_under_way():
            # Whoever has taken it is dead. A new limit, and not a slot that is given back: his lease still runs, and its end
            # would give back the slot of whoever has taken it since.
            self._run("gcl", "delete", LIMIT, unless="not found")
        self._run("gcl", "create", LIMIT, "--limit", "1", unless="already exists")
        self._call(sys.executable, "-m", "flows.deployments")
        if self._running("worker") is None:
            self._start(
                "worker", BIN / "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", POOL
            )
        say(f"Prefect  {self.prefect_url}")
        say(f"MLflow   {self.mlflow_url}")
        say(f"worker   of the pool {POOL}; log {self.folder / 'worker.log'}")
        say(f"login    {self._login('prefect')}; Prefect's pages ask for all that is in it")
        say(f"         {self._login('mlflow')}; MLflow's ask for the name before the colon, and the password after it")
        say(
            f'run one: PREFECT_API_AUTH_STRING="$(cat {self._login("prefect")})" PREFECT_API_URL={self.prefect_url}/api '
            f"{BIN / 'prefect'} deployment run retrain/nightly"
        )
        say(
            f"record from elsewhere: export MLFLOW_TRACKING_URI={self.mlflow_url} MLFLOW_TRACKING_USERNAME={USERS['mlflow']} "
            f'MLFLOW_TRACKING_PASSWORD="$(cut -d: -f2 {self._login("mlflow")})"'
        )

    def down(self) -> None:
        """End what `up` has started: the worker first, so that its runs can report to the server."""
        ended = [name for name in ("worker", "mlflow", "prefect") if self._end(name)]
        say(f"ended: {', '.join(ended)}" if ended else "nothing was running")

    def ui(self) -> None:
        """Become an MLflow server: its pages, for as long as somebody looks at them."""
        if (port := self._port("mlflow")) is not None:
            sys.exit(f"error: MLflow runs already: http://{HOST}:{port}, with the login in {self._login('mlflow')}")
        self._refuse_beside_pages()
        self._probe("ui", "mlflow", self.mlflow_port)
        self._log_in()
        self._let_in_one_user()
        say(f"MLflow   {self.mlflow_url}")
        say(f"login    {self._login('mlflow')}; the name is before the colon, the password after it")
        sys.stdout.flush()
        os.chdir(self.project)
        command = ["mlflow", *self._mlflow()]
        self._note("ui", psutil.Process(), command)  # what it becomes has its id and its start time
        os.execve(BIN / "mlflow", command, self.environment | self._guard())

    def _mlflow(self) -> tuple[str, ...]:
        """How MLflow serves the project's store."""
        tracking.follow_folder(self.project / "mlruns")
        store = f"sqlite:///{self.project / 'mlruns/mlflow.db'}"
        artifacts = (self.project / "mlruns/artifacts").as_uri()
        return (
            "server", "--host", HOST, "--port", str(self.mlflow_port), "--workers", "1", "--app-name", "basic-auth",
            "--backend-store-uri", store, "--default-artifact-root", artifacts,
            "--allowed-hosts", f"{HOST}:{self.mlflow_port},localhost:{self.mlflow_port}",
            "--cors-allowed-origins", self.mlflow_url,
        )  # fmt: skip

    def _guard(self) -> dict[str, str]:
        """What MLflow's server alone is told, so that it asks for the login."""
        user, _, password = self._login("mlflow").read_text().partition(":")
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "mlflow-login.ini"),
            "MLFLOW_AUTH_ADMIN_USERNAME": user,
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(
                24
            ),  # of a form that is open when it is started again
            "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a handful of processes for jobs that nobody has
        }

    def _let_in_one_user(self) -> None:
        """MLflow notes the password of its user when it first starts. It starts anew each time, so that the login is the one in use.

        To be called just before the start: one that runs would lose its user.
        """
        (self.folder / "mlflow-login.ini").write_text(LOGIN_OF_MLFLOW)
        users = self.folder / "mlflow-users.db"
        users.unlink(missing_ok=True)
        write_once(users, "")

    def _login(self, name: str) -> Path:
        return self.folder / f"{name}.login"

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
        """Let each server, and all that we start beside it, share a secret. It is made once, and only we can read it."""
        self.folder.mkdir(exist_ok=True)
        (self.project / "mlruns").mkdir(exist_ok=True)
        for name in USERS:
            write_once(self._login(name), f"{USERS[name]}:{secrets.token_urlsafe(24)}")
        prefect = self._login("prefect").read_text()
        self.environment |= {"PREFECT_SERVER_API_AUTH_STRING": prefect, "PREFECT_API_AUTH_STRING": prefect}
        if tracking.server() in (None, self.mlflow_url):  # another server must not see ours, and may need its own
            user, _, password = self._login("mlflow").read_text().partition(":")
            self.environment |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}

    def _refuse_other_ports(self) -> None:
        """What runs stays where it is: half of it at new ports would be a worker that asks a server which is not there."""
        asked = {"prefect": self.prefect_port, "mlflow": self.mlflow_port}
        runs = {name: port for name in asked if (port := self._port(name)) is not None}
        if any(asked[name] != port for name, port in runs.items()):
            where = ", ".join(f"{name} at http://{HOST}:{port}" for name, port in runs.items())
            same = " ".join(f"{name.upper()}_PORT={port}" for name, port in runs.items())
            sys.exit(f"error: running already: {where}; nothing was changed. To move it `make down` first, to start what "
                     f"is missing beside it `make up {same}`")  # fmt: skip

    def _refuse_beside_pages(self) -> None:
        if (port := self._port("ui")) is not None:
            sys.exit(f"error: `make ui` runs at http://{HOST}:{port}, with the login of this project; end it first")

    def _probe(self, action: str, name: str, port: int) -> None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                sys.exit(f"error: port {port} is taken by something that `make up` has not started; end it, or choose "
                         f"another: make {action} {name.upper()}_PORT={port + 1}")  # fmt: skip

    def _port(self, name: str) -> int | None:
        """Where a service listens that we have started, if it still runs."""
        if self._running(name) is None:
            return None
        command = json.loads((self.folder / f"{name}.json").read_text())["command"]
        return int(command[command.index("--port") + 1])

    def _serve(self, name: str, health: str, *arguments: str, **more: str) -> None:
        """Start a server unless it runs, and wait until it answers."""
        process = self._running(name)
        if process is None:
            self._probe("up", name, int(health.split(":")[2].partition("/")[0]))
            if name == "mlflow":
                self._let_in_one_user()
            process = self._start(name, BIN / name, *arguments, **more)
        deadline = time.monotonic() + START
        while not answers(health):
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
                sys.exit(f"error: {name} does not answer at {health}; see {self.folder / name}.log")
            time.sleep(0.3)

    def _start(self, name: str, *command: str | Path, **more: str) -> psutil.Process:
        path = self.folder / f"{name}.log"
        if path.exists() and path.stat().st_size > MOST_LOGGED:
            path.replace(path.with_suffix(".1.log"))
        with path.open("ab") as log:
            started = subprocess.Popen(
                command, cwd=self.project, env=self.environment | more, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        process = psutil.Process(started.pid)
        self._note(name, process, command)
        return process

    def _note(self, name: str, process: psutil.Process, command: Sequence[str | Path]) -> None:
        record = {"pid": process.pid, "created": process.create_time(), "command": [str(part) for part in command]}
        (self.folder / f"{name}.json").write_text(json.dumps(record))

    def _running(self, name: str) -> psutil.Process | None:
        """The process that we have started as this service, if it still runs."""
        with suppress(FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
            record = json.loads((self.folder / f"{name}.json").read_text())
            process = psutil.Process(record["pid"])
            same = abs(process.create_time() - record["created"]) < CLOCK
            if same and process.status() != psutil.STATUS_ZOMBIE:
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

    def _run(self, *arguments: str, unless: str = "") -> None:
        """Let Prefect's command do something, `unless` it says that it is done."""
        self._call(str(BIN / "prefect"), "--no-prompt", *arguments, unless=unless)

    def _call(self, *command: str, unless: str = "") -> None:
        done = subprocess.run(
            command, cwd=self.project, env=self.environment, capture_output=True, text=True, check=False
        )
        words = done.stdout + done.stderr
        if done.returncode and not (unless and unless in words):
            sys.exit(f"error: {shlex.join(command)}\n{words.strip()}")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def write_once(path: Path, text: str) -> None:
    """Make a file that only we can read. One that is there stays as it is."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Start or end the project's services on this machine.")
    parser.add_argument("action", choices=("up", "down", "ui"))
    parser.add_argument("--project", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    options = parser.parse_args()
    services = Services(options.project.resolve(), options.prefect_port, options.mlflow_port)
    {"up": services.up, "down": services.down, "ui": services.ui}[options.action]()


if __name__ == "__main__":
    main()

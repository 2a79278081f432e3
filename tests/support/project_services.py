"""`make up` in a project of a test, and what its servers are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tools.ports import free_port
from tools.services import HOST, LIMIT, QUIET

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Seconds that a server may take to answer where the disk is slow: its database is a file."""


class ProjectServices:
    """`tools/services.py` in a project, at ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prefect_port, self.mlflow_port = folder, free_port(), free_port()
        self.prefect, self.mlflow = f"http://{HOST}:{self.prefect_port}", f"http://{HOST}:{self.mlflow_port}"
        self.more: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Without what keeps dependencies quiet: that is for `make up` to say. MLflow is quiet under pytest and CI as well."""
        left_out = {*QUIET, "PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return kept | {"PYTHONPATH": str(ROOT / "src")} | self.more

    def command(self, action: str, *options: str) -> list[str]:
        ports = ("--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port))
        return [
            sys.executable,
            str(ROOT / "tools/services.py"),
            action,
            "--project",
            str(self.folder),
            *ports,
            *options,
        ]

    def run(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = self.command(action, *options)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def up(self) -> str:
        """What `make up` says."""
        done = self.run("up")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def records(self) -> dict[str, int]:
        """The ids of the processes that it has started."""
        return {path.stem: json.loads(path.read_text())["pid"] for path in (self.folder / ".services").glob("*.json")}

    def login(self, name: str) -> tuple[str, str]:
        path = self.folder / f".services/{name}.login"
        assert path.stat().st_mode & 0o777 == 0o600
        user, _, password = path.read_text().partition(":")
        return user, password

    @property
    def as_client(self) -> dict[str, str]:
        """The environment of a client of Prefect."""
        login = {
            "PREFECT_API_URL": f"{self.prefect}/api", "PREFECT_API_AUTH_STRING": ":".join(self.login("prefect")),
            "PREFECT_API_REQUEST_TIMEOUT": str(PATIENCE),
        }  # fmt: skip
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return self.environment | login | {"PREFECT_HOME": str(self.folder / ".prefect"), "PATH": path}

    def limit(self) -> dict[str, Any]:
        """The limit under which commands of flows run, as Prefect has it."""
        url = f"{self.prefect}/api/v2/concurrency_limits/{LIMIT}"
        return httpx.get(url, auth=self.login("prefect"), timeout=PATIENCE).json()

    def taken(self) -> int:
        """How many slots of the limit are taken."""
        return self.limit()["active_slots"]

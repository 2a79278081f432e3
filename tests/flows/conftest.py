"""A project whose `dvc` and `dragoman` are a script that does as it is told, a Prefect server, and what `make up` starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from project_services import PATIENCE, ROOT, ProjectServices

STUB = """#!{python}
import json, os, sys, time
from pathlib import Path

name = os.path.basename(sys.argv[0])
command = " ".join([name, *sys.argv[1:]])
started = time.time()
plan = json.loads(Path("plan.json").read_text())
calls = [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()] if Path("calls.jsonl").exists() else []
before = sum(call["command"] == command for call in calls)
steps = plan.get(command, [{{}}])
step = steps[min(before, len(steps) - 1)]
print("here is", command)
sys.stdout.flush()
for path, text in step.get("writes", {{}}).items():
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
while not os.path.exists(step.get("awaits", ".")) and time.time() < started + 600:
    time.sleep(0.05)
if "sleep" in step:
    time.sleep(step["sleep"])
if "say" in step:
    print(step["say"])
with open("calls.jsonl", "a") as log:
    log.write(json.dumps({{"command": command, "started": started, "ended": time.time()}}) + "\\n")
sys.exit(step.get("code", 0))
"""


class Stub:
    """What the commands will do, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, list[dict]] = {}
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("dvc", "dragoman"):
            path = self.bin / name
            path.write_text(STUB.format(python=sys.executable))
            path.chmod(0o755)
        self.tell({})

    def tell(self, plan: dict[str, list[dict]]) -> None:
        """For each command line, what to do the first time, the second time, ...; the last holds for all that follow."""
        self.plan |= plan
        (self.folder / "plan.json").write_text(json.dumps(self.plan))

    @property
    def calls(self) -> list[dict]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def commands(self) -> list[str]:
        return [call["command"] for call in self.calls]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_BIN", str(made.bin))
    return made


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    from prefect.settings import PREFECT_API_DATABASE_TIMEOUT, PREFECT_API_REQUEST_TIMEOUT, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    patient = {PREFECT_API_REQUEST_TIMEOUT: PATIENCE, PREFECT_API_DATABASE_TIMEOUT: PATIENCE}
    with temporary_settings(patient), prefect_test_harness(server_startup_timeout=int(PATIENCE)):
        yield


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import commands

    monkeypatch.setattr(commands.run, "retry_delay_seconds", [0, 0])


@contextmanager
def services_in(folder: Path) -> Iterator[ProjectServices]:
    shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "prefect.yaml", folder)
    made = ProjectServices(folder)
    yield made
    made.run("down")


@pytest.fixture
def services(stub: Stub) -> Iterator[ProjectServices]:
    """What `make up` starts in the project, which ends with the test."""
    with services_in(stub.folder) as made:
        yield made


@pytest.fixture(scope="module")
def services_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectServices]:
    """The same in a project that has no commands, for all tests of a module: to start and end them takes a minute."""
    with services_in(tmp_path_factory.mktemp("project")) as made:
        made.up()
        yield made

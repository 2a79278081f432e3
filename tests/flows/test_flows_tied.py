"""A command ends with the process that has started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows import tied
from tools.ray_machines import until

ROOT = Path(__file__).parents[2]
# It says its id and that of a child of its own. Neither would ever end.
COMMAND = "#!/bin/sh\nsleep 1000 &\necho $$ $! > ids.new && mv ids.new ids\nwait\n"
FLOW = """
import asyncio, logging
from flows import commands
commands.get_run_logger = logging.getLogger
asyncio.run(commands.execute(["dragoman", "sft"]))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "dragoman").write_text(COMMAND)
    (tmp_path / "dragoman").chmod(0o755)
    return tmp_path


def ids(folder: Path) -> list[int]:
    until((folder / "ids").exists, lambda: "the command has begun")
    return [int(word) for word in (folder / "ids").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # ended before, or between being found and read
        return False


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_flow_that_is_killed_leaves_no_command_and_no_child_of_one(folder):
    environment = os.environ | {"DRAGOMAN_BIN": str(folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    flow = subprocess.Popen([sys.executable, "-c", FLOW], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    running = ids(folder)
    assert all(map(lives, running))
    flow.kill()
    flow.wait()
    until(lambda: not any(map(lives, running)), lambda: "command and child have ended")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_does_not_listen_ends_too_where_the_command_does(folder):
    (folder / "dragoman").write_text(COMMAND.replace("sleep 1000", "(trap '' TERM; exec sleep 1000)"))
    code = "import sys; from flows import tied; tied.GRACE = 0.5; sys.exit(tied.main())"
    keeper = subprocess.Popen(
        [sys.executable, "-c", code, folder / "dragoman"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    running = ids(folder)
    keeper.stdin.close()  # as if the flow had been killed
    until(lambda: not any(map(lives, running)), lambda: "command and child have ended")
    assert keeper.wait() == -signal.SIGKILL


def run(*command: str) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.Popen(
        [sys.executable, tied.__file__, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    return subprocess.CompletedProcess(pipe.args, pipe.wait(), pipe.stdout.read(), pipe.stderr.read())


def test_output_and_exit_code_are_the_command_s():
    done = run("sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_the_command_is_what_the_caller_sees(number):
    assert run("sh", "-c", f"kill -{int(number)} $$").returncode == -number


def test_a_program_that_is_not_there_is_named():
    done = run("no/such/program")
    assert (done.returncode, done.stderr) == (127, "error: no/such/program: No such file or directory\n")

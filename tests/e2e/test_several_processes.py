"""`dragoman rl` by two processes, as a person starts it: one is killed, the command says so, and goes on when it is given again."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command import run
from towns import make_towns, river_llm

BIN = Path(sys.executable).parent
RL = [BIN / "dragoman", "rl", "--set", "rl.processes=2", "--iterations", "3", "--no-track", "--out", "results/rl"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture
def project(tmp_path, monkeypatch, tiny_model) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with river_llm() as url:
        make_towns(tmp_path, url, tiny_model)
        yield tmp_path


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(RL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_another_process(command: int, checkpoint: Path) -> None:
    """As soon as the first iteration is over."""
    until = time.monotonic() + 900
    while not checkpoint.is_file():
        assert time.monotonic() < until and psutil.pid_exists(command)
        time.sleep(0.05)
    others = []
    for child in psutil.Process(command).children():
        with suppress(psutil.Error):  # one of another kind may end meanwhile
            if "spawn_main" in " ".join(child.cmdline()):
                others.append(child)
    (other,) = others
    os.kill(other.pid, signal.SIGKILL)


def test_a_process_is_killed_and_the_command_goes_on_when_it_is_given_again(project, capsys):
    for command in (
        ["index", "--dataset", "towns"],
        ["seeds", "--no-track"],
        ["sft", "--no-track", "--set", "sft.processes=2"],
    ):
        assert run(capsys, *command)[0] == 0
    cut = started()
    kill_another_process(cut.pid, project / "results/rl/checkpoint.pt")
    _, said = cut.communicate(timeout=900)
    assert cut.returncode == 1, said
    assert "error: of the 2 processes that train, process 1 ended with -9" in said and "Traceback" not in said
    again = started()
    printed, said = again.communicate(timeout=900)
    assert again.returncode == 0, said
    assert "going on after iteration" in said
    rows = csv.DictReader((project / "results/rl/history.csv").open())
    assert [row["iteration"] for row in rows] == ["0", "1", "2"]
    assert json.loads((project / "results/rl/metrics.json").read_text())["iterations"] == 3
    assert "results/rl" in printed

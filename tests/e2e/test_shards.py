"""Shards on machines that share no disk: what each has made travels by DVC's remote, and what is passed on is a pointer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run
from scripted import make_project, open_runtime, without_times

from dragoman.pipeline import project

ROOT = Path(__file__).parents[2]
TREES = Path("results/trees")

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


class Machine:
    """A checkout of its own, which knows the remote."""

    def __init__(self, folder: Path, remote: Path) -> None:
        self.folder = make_project(folder)
        (folder / ".dvc").mkdir()
        config = (ROOT / ".dvc" / "config").read_text().replace("[core]", "[core]\n    remote = store")
        (folder / ".dvc" / "config").write_text(f"{config}['remote \"store\"']\n    url = {remote}\n")

    def dvc(self, *words: object) -> None:
        program = Path(sys.executable).parent / "dvc"
        environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
        done = subprocess.run(
            [program, *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


@pytest.fixture
def roll_out(monkeypatch, capsys):
    """Grows trees on a machine, in this process."""
    monkeypatch.setattr(project, "open_runtime", open_runtime)

    def run_there(machine: Machine, out: Path, *more: str) -> None:
        with monkeypatch.context() as there:
            there.chdir(machine.folder)
            code, _, err = run(capsys, "rollout", "--system", "c3po", "--tree", "--out", str(out), *more)
        assert code == 0, err

    return run_there


def test_shards_of_machines_without_a_common_disk_are_merged_by_way_of_the_remote(tmp_path, roll_out):
    machines = [Machine(tmp_path / name, tmp_path / "remote") for name in ("one", "two")]
    head = Machine(tmp_path / "head", tmp_path / "remote")
    shards = TREES / "shards"
    (head.folder / shards).mkdir(parents=True)
    for number, machine in enumerate(machines, 1):
        roll_out(machine, TREES, "--shard", f"{number}/2")
        machine.dvc("add", f"{shards}/{number}-of-2")
        machine.dvc("push", f"{shards}/{number}-of-2.dvc")
        shutil.copy(machine.folder / shards / f"{number}-of-2.dvc", head.folder / shards)
        shutil.rmtree(machine.folder)  # it is not needed any more
    head.dvc("pull", f"{shards}/1-of-2.dvc", f"{shards}/2-of-2.dvc")
    roll_out(head, TREES, "--merge", "2")
    roll_out(head, Path("results/whole"))
    merged, whole = without_times(head.folder / TREES), without_times(head.folder / "results/whole")
    assert len(merged) == 7 and merged == sorted(whole, key=lambda episode: episode.question["id"])

"""Shards on machines that share no disk: what each has made travels by DVC's remote, and what is passed on is a pointer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripted import make_project, without_times

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "dragoman": [sys.executable, ROOT / "tests/support/scripted.py"],
    "dvc": [Path(sys.executable).parent / "dvc"],
}
TREES = Path("results/trees")

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


class Machine:
    """A checkout of its own, which knows the remote."""

    def __init__(self, folder: Path, remote: Path) -> None:
        self.folder = make_project(folder)
        (folder / ".dvc").mkdir()
        config = (ROOT / ".dvc" / "config").read_text().replace("[core]", "[core]\n    remote = store")
        (folder / ".dvc" / "config").write_text(f"{config}['remote \"store\"']\n    url = {remote}\n")

    def run(self, command: str) -> None:
        program, *arguments = command.split()
        paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests/support", ROOT)))
        environment = os.environ | {"PYTHONPATH": paths, "DVC_NO_ANALYTICS": "1"}
        words = [*PROGRAMS[program], *arguments]
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_shards_of_machines_without_a_common_disk_are_merged_by_way_of_the_remote(tmp_path):
    machines = [Machine(tmp_path / name, tmp_path / "remote") for name in ("one", "two")]
    head = Machine(tmp_path / "head", tmp_path / "remote")
    shards = TREES / "shards"
    (head.folder / shards).mkdir(parents=True)
    for number, machine in enumerate(machines, 1):
        machine.run(f"dragoman rollout --system c3po --tree --out {TREES} --shard {number}/2")
        machine.run(f"dvc add {shards}/{number}-of-2")
        machine.run(f"dvc push {shards}/{number}-of-2.dvc")
        shutil.copy(machine.folder / shards / f"{number}-of-2.dvc", head.folder / shards)
        shutil.rmtree(machine.folder)  # it is not needed any more
    head.run(f"dvc pull {shards}/1-of-2.dvc {shards}/2-of-2.dvc")
    head.run(f"dragoman rollout --system c3po --tree --out {TREES} --merge 2")
    head.run("dragoman rollout --system c3po --tree --out results/whole")
    merged, whole = without_times(head.folder / TREES), without_times(head.folder / "results/whole")
    assert len(merged) == 7 and merged == sorted(whole, key=lambda episode: episode.question["id"])

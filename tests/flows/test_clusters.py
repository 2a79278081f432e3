"""Shards on a real Ray cluster and a real Dask cluster of this machine: the real commands, scripted models."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import run
from scripted import make_project, open_checked, open_runtime, predictions, without_times

from dragoman import runtime
from dragoman.pipeline import bench
from dragoman.pipeline import project as pipeline_project
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import read_samples
from flows.commands import flags
from flows.in_shards import in_shards
from flows.sweep import sweep
from tools.ray_machines import Machines, until

ROOT = Path(__file__).parents[2]
SUITE = """
systems: [direct, standard, c3po]
datasets:
  seen: {questions: data/atlas/train.jsonl, index: none}
  unseen: {questions: data/atlas/test.jsonl, index: none}
"""

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(1800)]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = make_project(tmp_path)
    program = folder / "bin" / "dragoman"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests" / "support" / "scripted.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("DRAGOMAN_BIN", str(program.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests" / "support", ROOT))))
    for address in ("RAY_ADDRESS", "DASK_SCHEDULER_ADDRESS"):
        monkeypatch.delenv(address, raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def alone(project, monkeypatch, capsys) -> Callable[..., Awaitable[None]]:
    """Runs a command whole, in this process: what shards are to leave."""
    monkeypatch.setattr(pipeline_project, "open_runtime", open_runtime)
    for module in (runtime, bench):
        monkeypatch.setattr(module, "open_checked", open_checked)

    async def whole(command: str, out: str, options: dict[str, Any]) -> None:
        code, _, err = await asyncio.to_thread(run, capsys, command, *flags(options), f"--out={out}")
        assert code == 0, err

    return whole


@pytest.fixture
def ray():
    return pytest.importorskip("ray", reason="ray is not installed")


@pytest.fixture
def one_machine(project, ray):
    """A cluster of two processors, started apart from the flow, which finds it."""
    ray.init(num_cpus=2, include_dashboard=False, namespace="prefect", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def machines(project, ray, monkeypatch) -> Iterator[Machines]:
    """A head, two workers, and this process as who starts flows."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    cluster = Machines(folder, {"SCRIPTED_SECONDS": "0.2", "RAY_memory_monitor_refresh_ms": "0"})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    try:
        cluster.start_head()
        ray.init(namespace="prefect", log_to_driver=False)
        for workers in (1, 2):
            cluster.start_worker()
            until(lambda n=workers: ray.cluster_resources().get("CPU") == n, lambda: f"it has joined: {cluster.logs()}")
        yield cluster
    finally:
        ray.shutdown()
        cluster.close()
        shutil.rmtree(folder)


ROLLOUT = {"system": "c3po", "tree": True, "limit": 5}


async def roll_out(out: str, **sharding) -> list[Episode]:
    await in_shards("rollout", out, ROLLOUT, **sharding)
    return without_times(Path(out))


async def roll_out_alone(alone) -> list[Episode]:
    """What `roll_out` is to leave, in the order in which shards are merged."""
    await alone("rollout", "whole", ROLLOUT)
    episodes = without_times(Path("whole"))
    assert len(episodes) == 5
    return sorted(episodes, key=lambda e: e.question["id"])


async def test_ray_gives_the_same_episodes(project, one_machine, alone):
    whole = await roll_out_alone(alone)
    assert await roll_out("ray", shards=3, runner="ray") == whole
    assert len(list(Path("ray", "shards").glob("*-of-3/shard.json"))) == 3


@pytest.mark.timeout(1800)  # three commands, each once whole and once in shards: minutes, and more where others compute
async def test_a_head_and_two_workers_leave_what_one_process_leaves(project, machines, alone):
    asked = {"limit": 5, "track": False}
    Path("suite.yaml").write_text(SUITE)
    commands = {
        "seeds": asked,
        "evaluate": {"systems": "direct,c3po", **asked},
        "bench": {"suite": "suite.yaml", **asked},
    }
    for command, options in commands.items():
        await alone(command, f"whole/{command}", options)
        await in_shards(command, f"ray/{command}", options, shards=2, runner="ray")
    whole, merged = (read_samples(Path(out, "seeds/samples.parquet")) for out in ("whole", "ray"))
    assert merged == whole and len({sample.question for sample in whole}) > 1
    whole, merged = (predictions(Path(out, "evaluate")) for out in ("whole", "ray"))
    assert merged == whole and len(whole) == 2 * 5
    whole, merged = (cells_and_figures(Path(out, "bench")) for out in ("whole", "ray"))
    assert merged == whole and [cell["status"] for cell in whole["cells"]] == ["finished"] * 2 * 3


@pytest.mark.parametrize("runner", ["ray", "dask"])
async def test_a_sweep_leaves_what_its_commands_leave_and_names_the_point_that_fails(project, runner, alone):
    pytest.importorskip({"ray": "ray", "dask": "distributed"}[runner])
    options = {"system": "c3po", "tree": True, "limit": 3}
    seeds = {"seed": [0, "none", 1]}
    state = await sweep("rollout", "swept", seeds, options, runner=runner, at_once=2, return_state=True)
    assert state.is_failed() and state.message == "1 of 3 points failed: seed-none"
    *_, first, failed, last = Path("swept", "table.md").read_text().splitlines()
    assert failed.startswith("| none | – | error: ") and "seed" in failed.partition("error: ")[2]
    left = []
    for seed, row in ((0, first), (1, last)):
        await alone("rollout", f"alone-{seed}", {**options, "seed": seed})
        left.append(without_times(Path("swept", f"seed-{seed}")))
        assert left[-1] == without_times(Path(f"alone-{seed}")) and len(left[-1]) == 3
        reward = json.loads(Path(f"alone-{seed}", "metrics.json").read_text())["reward"]
        assert row == f"| {seed} | {reward:.4g} | – |"
    assert left[0] != left[1]


async def test_dask_gives_the_same_episodes(project, alone):
    pytest.importorskip("distributed", reason="dask is not installed")
    whole = await roll_out_alone(alone)
    assert await roll_out("dask", shards=3, runner="dask") == whole
    assert len(list(Path("dask", "shards").glob("*-of-3/shard.json"))) == 3


async def test_a_machine_that_dies_costs_its_unfinished_questions_alone(project, machines, alone):
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("rl: {", "rl: {concurrency: 1, "))  # one after the other
    whole = await roll_out_alone(alone)
    shards = [Path("merged", "shards", f"{number}-of-2") for number in (1, 2)]
    finished: list[bytes] = []

    def die() -> None:
        until(lambda: lines(shards[0]), lambda: "it has finished a question")
        machines.kill_who_runs("--shard=1/2")
        assert not (shards[0] / "shard.json").exists(), "it was to die in the middle"
        finished.append(lines(shards[0]))
        until(lambda: lines(shards[1]), lambda: "the other has finished a question")
        finished.append(lines(shards[1]))

    merged, _ = await asyncio.gather(roll_out("merged", shards=2, runner="ray"), asyncio.to_thread(die))
    assert merged == whole
    for shard, before in zip(shards, finished, strict=True):
        assert lines(shard).startswith(before), "with their times: what was finished is not done again"


def lines(shard: Path) -> bytes:
    """The episodes of a shard that are whole."""
    path = shard / "episodes.jsonl"
    found = path.read_bytes() if path.exists() else b""
    return found[: found.rfind(b"\n") + 1]


def cells_and_figures(bench: Path) -> dict[str, Any]:
    """Of a bench, as they would be if nothing took any time."""
    found: dict[str, Any] = json.loads((bench / "metrics.json").read_text())
    for of_dataset in found["datasets"].values():
        for summary in of_dataset["systems"].values():
            summary |= {"seconds": 0, "latency": 0}
    return found

"""Shards of a rollout on a real Ray cluster and a real Dask cluster of this machine: the real command, scripted models."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest
from scripted import make_project, without_times

from dragoman.rollout.record import Episode
from flows.rollout import rollout

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(600)]


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
def ray(project, monkeypatch):
    """A cluster of two processors, started apart from the flow, which finds it."""
    module = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or it writes one into the home folder
    module.init(num_cpus=2, include_dashboard=False, namespace="prefect", log_to_driver=False)
    yield module
    module.shutdown()


async def roll_out(out: str, **sharding) -> list[Episode]:
    await rollout(system="c3po", limit=5, out=out, **sharding)
    return without_times(Path(out))


async def test_ray_gives_the_same_episodes(project, ray):
    whole = await roll_out("whole")
    assert len(whole) == 5
    assert await roll_out("ray", shards=3, runner="ray") == sorted(whole, key=lambda e: e.question["id"])
    assert len(list(Path("ray", "shards").glob("*-of-3/shard.json"))) == 3


async def test_dask_gives_the_same_episodes(project):
    pytest.importorskip("distributed", reason="dask is not installed")
    whole = await roll_out("whole")
    assert len(whole) == 5
    assert await roll_out("dask", shards=3, runner="dask") == sorted(whole, key=lambda e: e.question["id"])
    assert len(list(Path("dask", "shards").glob("*-of-3/shard.json"))) == 3

"""Versions of the proxy, in a real MLflow store and a real DVC cache."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from policies import trained

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.registry import versions as registry
from dragoman.registry.versions import policy_set
from dragoman.serving.champion import Registered


@pytest.fixture
def project(tmp_path, monkeypatch, empty_store):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(empty_store, "mlruns")
    return tmp_path


def dvc(project: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def kept(project):
    """A project whose stage `rl` DVC keeps."""
    dvc(project, "init", "--no-scm", "-q")
    (project / "input.txt").write_text("x")
    stages = {"rl": {"cmd": "true", "deps": ["input.txt"], "outs": [{"results/rl": {"persist": True}}]}}
    (project / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    return project


def test_a_version_tells_where_it_comes_from(project):
    warm = registry.register(trained(project, "sft", b"warm"))
    version = registry.register(trained(project, "rl", b"better", parent=warm.policy))
    assert (warm.number, version.number) == (1, 2)
    assert (version.stage, version.system, version.base, version.parent) == ("rl", "c3po", "smollm2", warm.policy)
    assert version.data == {"questions": "d1"} and version.metrics == {"dev_reward": 0.5}
    assert version.parameters == {"lr": "0.1", "guards.max_kl": "1.0"}
    assert version.folder == Path("results/rl/policies") / version.policy and version.dvc == {}
    assert [v.name for v in registry.lineage("v2")] == ["v2", "v1"]
    assert [v.name for v in registry.history()] == ["v2", "v1"]


def test_the_same_weights_are_one_version(project):
    folder = trained(project, "rl", b"one")
    assert registry.register(folder) == registry.register(folder)
    assert len(registry.history()) == 1


def test_a_folder_that_no_stage_made_or_that_was_changed_is_refused(project):
    (project / "mine").mkdir()
    with pytest.raises(UserError, match="mine: no training stage has made this folder"):
        registry.register(Path("mine"))
    folder = trained(project, "rl", b"one")
    (folder / "model.safetensors").write_bytes(b"two")
    with pytest.raises(UserError, match="its manifest says"):
        registry.register(folder)


def test_aliases_and_versions_stand_after_the_at(project):
    first = registry.register(trained(project, "sft", b"warm"))
    second = registry.register(trained(project, "rl", b"better"))
    registry.promote(first, None)
    registry.promote(second, first)
    assert policy_set("champion").of("*") == Path("results/rl/policies") / second.policy
    assert policy_set("previous").of("*") == Path("results/sft/policies") / first.policy
    assert policy_set("v1").of("*") == Path("results/sft/policies") / first.policy
    assert policy_set("sft").of("*") == Path("results/sft/policies") / first.policy
    with pytest.raises(UserError, match=r"'challenger': no such version; there are: v2 \(champion, [0-9a-f]{12}\), v1"):
        policy_set("challenger")


def test_a_question_does_not_create_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there are: none"):
        registry.find("champion")
    assert not Path("mlruns").exists()


def test_weights_are_hashed_again_when_they_are_resolved(project):
    version = registry.register(trained(project, "rl", b"one"))
    assert registry.resolve("v1") == version.folder
    (version.folder / "model.safetensors").write_bytes(b"tampered")
    with pytest.raises(UserError, match="v1: its weights were in results/rl"):
        registry.resolve("v1")


def test_a_version_outlives_the_next_run_of_its_stage(kept):
    first = trained(kept, "rl", b"one")
    dvc(kept, "commit", "-f")
    version = registry.register(first)
    path, _, md5 = version.dvc["out"].partition(" ")
    assert path == "results/rl" and md5.endswith(".dir") and version.dvc["stage"] == "rl"
    assert version.dvc["input.txt"] == "9dd4e461268c8034f5c8564e155c67a6"  # of "x"

    second = trained(kept, "rl", b"two")
    dvc(kept, "commit", "-f")
    assert not first.exists() and registry.resolve(registry.register(second).name).samefile(second)
    restored = registry.resolve("v1")
    assert restored == Path("results/registry") / version.policy
    assert (restored / "model.safetensors").read_bytes() == b"one" and (restored / "config.json").is_file()
    assert (restored / "model.safetensors").is_symlink()  # stored once
    assert registry.resolve("v1") == restored

    cached = (restored / "model.safetensors").resolve()
    cached.chmod(0o644)
    cached.write_bytes(b"rotten")
    with pytest.raises(UserError, match="are not those that were registered"):
        registry.resolve("v1")
    cached.unlink()
    with pytest.raises(UserError, match=r"does not hold policies/.*dvc fetch"):
        registry.resolve("v1")


def test_what_dvc_has_not_seen_is_not_said_to_be_kept(kept):
    trained(kept, "rl", b"one")
    dvc(kept, "commit", "-f")
    assert registry.register(trained(kept, "rl", b"two")).dvc == {}


def test_the_way_of_the_aliases(project):
    versions = [registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(3)]

    def aliases():
        return {alias: v.name for v in registry.history() for alias in v.aliases}

    with pytest.raises(UserError, match="no champion before this one"):
        registry.rollback()
    registry.challenge(versions[0])
    assert aliases() == {"challenger": "v1"}
    registry.promote(versions[0], None)
    assert aliases() == {"champion": "v1"}
    registry.challenge(versions[2])
    registry.promote(versions[1], versions[0])
    assert aliases() == {"champion": "v2", "previous": "v1", "challenger": "v3"}
    assert [v.name for v in registry.rollback()] == ["v1", "v2"]
    assert aliases() == {"champion": "v1", "previous": "v2", "challenger": "v3"}
    assert registry.find("v2").decision.startswith("rolled back 2")
    registry.rollback()
    assert aliases() == {"champion": "v2", "previous": "v1", "challenger": "v3"}


def test_there_is_no_rollback_to_weights_that_are_gone(project):
    first, second = (registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(2))
    registry.promote(first, None)
    registry.promote(second, first)
    shutil.rmtree(first.folder)
    shutil.rmtree(registry.RESTORED)
    with pytest.raises(UserError, match="not there any more"):
        registry.rollback()
    assert registry.find("champion").number == second.number


def _promote(number: int, barrier, results) -> None:
    versions = {v.number: v for v in registry.history()}
    barrier.wait()
    try:
        registry.promote(versions[number], versions[1])
        results.put((number, ""))
    except UserError as e:
        results.put((number, str(e)))


def test_of_two_promotions_at_once_one_wins(project):
    versions = [registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(3)]
    registry.promote(versions[0], None)
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2), spawn.Queue()
    processes = [spawn.Process(target=_promote, args=(n, barrier, results)) for n in (2, 3)]
    for process in processes:
        process.start()
    outcome = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    (won,) = [n for n, error in outcome.items() if not error]
    (lost,) = [n for n in outcome if n != won]
    assert f"v{lost} was compared with the champion v1, and the champion is v{won} by now" in outcome[lost]
    assert registry.find("champion").number == won and registry.find("previous").number == 1


def test_a_lock_is_waited_for_no_longer_than_said(project):
    with registry.locked(), pytest.raises(UserError, match="another process is at it"), registry.locked(wait=0):
        pass


def test_what_dvc_does_not_keep_outlives_the_next_run_of_its_stage_too(project):
    version = registry.register(trained(project, "rl", b"by hand"))
    trained(project, "rl", b"by hand, better")
    assert not version.folder.exists()
    assert (registry.resolve("v1") / "model.safetensors").read_bytes() == b"by hand"


async def test_the_endpoint_s_champion_is_the_registry_s_within_seconds(project):
    """A real store: what `dragoman promote` and `rollback` do to it is what `dragoman serve` asks it."""
    followed = Registered()
    assert followed.current() is None
    first, second = (registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(2))
    registry.promote(first, None)
    assert Path(followed.current()).name == first.policy
    clock = time.monotonic()
    registry.promote(second, first)
    assert Path(followed.current()).name == second.policy
    registry.rollback()
    assert Path(followed.current()).name == first.policy
    assert time.monotonic() - clock < 5


@pytest.fixture
def server(tmp_path, empty_store, monkeypatch):
    """A real MLflow server without runs, which commands find by the variable."""
    import mlflow

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tmp_path / "server"
    shutil.copytree(empty_store, folder)
    mine = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    mine.rename_experiment(mine.get_experiment_by_name(tracking.EXPERIMENT).experiment_id, "of a store")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination",
        str(folder / "kept"),
    ]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.services
def test_versions_and_runs_are_those_of_the_server_that_is_named(project, server, capsys):
    import mlflow

    assert registry.history() == []
    first = registry.register(trained(project, "sft", b"warm"))
    second = registry.register(trained(project, "rl", b"better", parent=first.policy))
    assert [v.name for v in registry.lineage("v2")] == ["v2", "v1"]
    registry.promote(first, None)
    registry.promote(second, registry.find("champion"))
    assert registry.resolve("champion") == second.folder
    assert [v.name for v in registry.rollback()] == ["v1", "v2"]

    (project / "table.md").write_text("| a table |")
    tracking.start()
    run = tracking.log_decision("x", {"a": 1}, [project / "table.md"], tags={}, parameters={"a": 1}, metrics={"b": 2.0})
    client = mlflow.MlflowClient(server)
    assert client.get_model_version_by_alias(registry.MODEL, "champion").version == "1"
    assert client.get_run(run).data.metrics == {"b": 2.0}
    assert {a.path for a in client.list_artifacts(run)} == {"decision.json", "table.md"}
    assert len(list((project / "server" / "kept").rglob("table.md"))) == 1
    assert not capsys.readouterr().out
    local = mlflow.MlflowClient(f"sqlite:///{project / 'mlruns' / 'mlflow.db'}")
    assert not local.search_registered_models() and not local.search_runs(["1"])


def test_only_an_address_of_a_server_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////somewhere/else.db")  # as MLflow itself leaves it
    assert tracking.store_uri(tmp_path) == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert tracking.store_uri(tmp_path) == "https://mlflow.example"

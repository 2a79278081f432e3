"""Versions of the proxy, in a real MLflow store."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import yaml
from policies import rolled_back, trained
from project import commit, dvc

from dragoman import tracking
from dragoman.core.errors import UserError
from dragoman.registry.policy import PolicySet, find_policy, publish, read_manifest
from dragoman.registry.version import differences
from dragoman.registry.versions import MODEL, Registry, content_sha256
from dragoman.serving.champion import RegistryChampion
from tools.ports import free_port


@pytest.fixture
def project(tmp_path, monkeypatch, empty_store):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(empty_store, "mlruns")
    return tmp_path


registry = Registry()
ROOT = Path(__file__).parents[2]


def test_a_version_tells_where_it_comes_from(project):
    warm = registry.register(trained(project, "sft", b"warm"))
    version = registry.register(trained(project, "rl", b"better", parent=warm.policy))
    assert (warm.number, version.number) == (1, 2)
    assert (version.stage, version.system, version.base, version.parent) == ("rl", "c3po", "smollm2", warm.policy)
    assert version.data == {"questions": "d1"} and version.metrics == {"dev_reward": 0.5}
    assert version.parameters == {"lr": "0.1", "guards.max_kl": "1.0"}
    assert version.folder == Path("results/rl/policies") / version.policy
    assert [v.name for v in registry.lineage("v2")] == ["v2", "v1"]
    assert [v.name for v in registry.history()] == ["v2", "v1"]


def test_the_same_weights_are_one_version(project):
    policy = trained(project, "rl", b"one")
    assert registry.register(policy) == registry.register(policy)
    assert len(registry.history()) == 1


def test_the_same_weights_with_other_instructions_are_two_versions_and_each_keeps_its_own(project):
    base = trained(project, "sft", b"base")
    manifest = {"stage": "gepa", "system": "c3po"}
    policies = [
        publish({}, Path("results/gepa"), manifest | {"instructions": {"router": text}}, carried=base.weights)
        for text in ("boldly", "meekly")
    ]
    with pytest.raises(UserError, match="neither a model folder nor a finished stage"):
        find_policy(str(policies[0].folder))  # the stage has gone on
    policies[0] = publish(
        {}, Path("results/gepa1"), manifest | {"instructions": {"router": "boldly"}}, carried=base.weights
    )
    first, second = (registry.register(policy) for policy in policies)
    assert registry.register(policies[0]) == first and (first.number, second.number) == (1, 2)
    assert [registry.policy(v.name).instructions["router"] for v in (first, second)] == ["boldly", "meekly"]
    kept = registry.policy(first.name).folder / "manifest.json"
    kept.write_text(kept.read_text().replace("boldly", "madly"))
    with pytest.raises(UserError, match="are not those that were registered"):
        registry.policy(first.name)


def test_a_folder_that_no_stage_made_or_that_was_changed_is_refused(project):
    Path("mine").mkdir()
    Path("mine/config.json").write_text("{}")
    with pytest.raises(UserError, match="mine: no training stage has made this folder"):
        registry.register(find_policy("mine"))
    policy = trained(project, "rl", b"one")
    (policy.folder / "model.safetensors").write_bytes(b"two")
    with pytest.raises(UserError, match="its manifest says"):
        registry.register(policy)


def test_aliases_and_versions_stand_after_the_at(project):
    first = registry.register(trained(project, "sft", b"warm"))
    second = registry.register(trained(project, "rl", b"better"))
    registry.promote(first, None)
    registry.promote(second, first)
    assert registry.policy("champion").version == second.policy
    assert registry.policy("previous").version == registry.policy("v1").version == first.policy
    assert registry.policy(first.policy).version == registry.policy(first.policy[:8]).version == first.policy
    assert registry.policy("sft").folder == Path("results/sft/policies") / first.policy
    with pytest.raises(UserError, match=r"'challenger': no such version; there are: v2 \(champion, [0-9a-f]{12}\), v1"):
        registry.policy("challenger")


def test_a_question_does_not_create_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there are: none"):
        registry.find("champion")
    assert not Path("mlruns").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_files_of_a_version_that_were_changed_are_refused(project, name):
    version = registry.register(trained(project, "rl", b"one"))
    policy = registry.open(version)
    assert policy.folder.is_relative_to("mlruns/policies") and policy.folder.name == version.policy
    (policy.folder / name).unlink()
    (policy.folder / name).write_bytes(b"tampered")
    with pytest.raises(UserError, match=r"v1: the files in mlruns/policies/\w+ are not those that were registered"):
        registry.open(version)


def test_a_version_outlives_its_stage_and_the_folder_of_results(project):
    first = registry.register(trained(project, "rl", b"one"))
    trained(project, "rl", b"two")
    shutil.rmtree("results")
    assert (registry.policy("v1").of("filter") / "model.safetensors").read_bytes() == b"one"
    shutil.rmtree("mlruns/policies")
    with pytest.raises(UserError, match=r"v1: its weights are not in mlruns/policies/\w+; .*`dragoman register`"):
        registry.open(first)


def test_a_version_without_files_here_gets_those_of_the_store(project):
    version = registry.register(trained(project, "rl", b"one"))
    run = tracking.keep_folder(Path("mlruns/policies", version.content[:12]), "weights")
    tracking.tag_version(MODEL, 1, {"run": run})
    shutil.rmtree("mlruns/policies")
    assert (registry.policy("v1").of("filter") / "model.safetensors").read_bytes() == b"one"
    (there,) = Path("mlruns/artifacts").rglob("model.safetensors")
    there.write_bytes(b"tampered")
    shutil.rmtree("mlruns/policies")
    with pytest.raises(UserError, match="are not those that were registered"):
        registry.policy("v1")
    assert not list(Path("mlruns/policies").iterdir())
    for other, said in (("../../data", "which is no run of MLflow"), ("0" * 32, "cannot be had")):
        tracking.tag_version(MODEL, 1, {"run": other})
        with pytest.raises(UserError, match=said):
            registry.policy("v1")


def test_a_version_that_several_ask_for_at_once_is_fetched_whole_for_each(project):
    version = registry.register(trained(project, "rl", b"one"))
    run = tracking.keep_folder(Path("mlruns/policies", version.content[:12]), "weights")
    tracking.tag_version(MODEL, 1, {"run": run})
    shutil.rmtree("mlruns/policies")
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: registry.policy("v1").of("filter") / "model.safetensors", range(4)))
    assert {path.read_bytes() for path in found} == {b"one"}
    assert [folder.name for folder in Path("mlruns/policies").iterdir()] == [version.content[:12]]


def shell(heading: str, folder: Path, *, last: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the first block of commands below a line of the guide that begins with `heading`, or the last one of it."""
    guide = (ROOT / "docs" / "operations.md").read_text()
    lines = guide[guide.index(f"\n{heading}") :].split("```sh\n")[1].split("```")[0].splitlines()
    script = lines[-1] if last else "\n".join(lines)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHON": "false",
    }  # `make setup` finds all of it there
    return subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True)


def set_up(folder: Path) -> None:
    """What `make setup` leaves: the environment of this test, with the mark that it is complete."""
    environment = folder / ".venv"
    environment.mkdir()
    for part in Path(sys.executable).parents[1].iterdir():
        if not part.name.startswith(".installed"):
            (environment / part.name).symlink_to(part)
    (environment / ".installed-cpu").touch()


@pytest.mark.process
def test_the_backup_of_the_guide_restores_the_champion_elsewhere_after_a_clean(project, monkeypatch):
    for name in ("Makefile", "params.yaml", "pyproject.toml", "conf", "requirements", ".dvcignore"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, project / name)
    ignored = (ROOT / ".gitignore").read_text()
    (project / ".gitignore").write_text(ignored.replace("/dvc.lock\n", ""))  # as the guide has it: git keeps the lock
    stage = {"cmd": "mkdir -p results/words && echo seven > results/words/words.txt", "outs": ["results/words"]}
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"words": stage}}))  # JSON is YAML
    (project / ".dvc").mkdir()
    (project / ".dvc/config").touch()
    commit(project)
    assert dvc(project, "repro").returncode == 0
    commit(project)
    set_up(project)
    tracking.start()
    (project / "table.md").write_text("| a table |")
    tracking.log_decision("x", {}, [project / "table.md"], tags={}, parameters={}, metrics={}, key="x")
    registry.promote(registry.register(trained(project, "rl", b"one")), None)
    subprocess.run(["make", "clean"], cwd=project, check=True, capture_output=True)
    assert not (project / "results").exists()
    assert shell("## Backup", project).returncode == 0

    restored = project / "elsewhere"
    subprocess.run(["git", "clone", "-q", project, restored], check=True)
    set_up(restored)
    shutil.move(project / "backup", restored)
    shutil.rmtree("mlruns")
    shutil.rmtree(".dvc")
    done = shell("To restore", restored)
    assert done.returncode == 0, done.stderr
    assert (restored / "results/words/words.txt").read_text() == "seven\n"
    assert "the weights are those that were registered" in done.stdout
    monkeypatch.chdir(restored)
    tracking.start()
    import mlflow

    (run,) = mlflow.MlflowClient().search_runs(["1"], "attributes.run_name = 'x'")
    table = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="table.md")
    assert Path(table).read_text() == "| a table |" and str(restored) in run.info.artifact_uri
    weights = registry.policy("champion").of("filter") / "model.safetensors"
    assert weights.read_bytes() == b"one"
    weights.chmod(0o644)
    weights.write_bytes(b"tampered")
    checked = shell("To restore", restored, last=True)
    assert checked.returncode == 2 and "are not those that were registered" in checked.stderr


def test_a_version_that_lost_its_files_is_whole_again_once_it_is_registered_again(project):
    policy = trained(project, "rl", b"one")
    version = registry.register(policy)
    (registry.open(version).folder / "config.json").unlink()
    assert registry.register(policy) == version
    assert registry.open(version).version == policy.version


def test_equal_weights_that_were_trained_with_other_settings_are_another_version_and_each_keeps_its_own(project):
    said = [{"settings": {"answer_tokens": tokens}, "prompts": "p", "views": 2} for tokens in (48, 96)]
    first, second = (registry.register(trained(project, "rl", b"one", trained_with=with_these)) for with_these in said)
    assert (first.name, second.name, first.policy) == ("v1", "v2", second.policy)
    assert [registry.open(version).manifest["trained_with"] for version in (first, second)] == said
    assert registry.register(find_policy("rl")) == second and len(registry.history()) == 2


def test_equal_weights_under_another_setting_that_may_be_turned_are_the_same_version_and_it_says_with_which(project):
    must = {"settings": {"k": 5}, "prompts": "p", "views": 3}
    registry.register(trained(project, "rl", b"one", trained_with=must))  # as before it was recorded
    said = [must | {"turned": {"bias": {"filter": {"Keep": keep}}}} for keep in (1, 2)]
    assert registry.register(trained(project, "rl", b"one", trained_with=said[0])).name == "v1"
    first, second = (
        registry.register(trained(project, "rl", weights, trained_with=with_these))
        for weights, with_these in zip((b"two", b"three"), said, strict=True)
    )
    assert ("trained with turned.bias.filter.Keep", "1", "2") in differences(first, second)


def as_before(policy: PolicySet, number: int) -> None:
    """Make a version one from before the hash of a version held what it was trained with."""
    content, before = content_sha256(policy), content_sha256(policy, settings=False)
    Path("mlruns/policies", content[:12]).rename(Path("mlruns/policies", before[:12]))
    tracking.tag_version(MODEL, number, {"content": before})


def test_a_champion_from_before_versions_were_hashed_with_settings_opens_and_is_registered_once(project):
    said = {"settings": {"answer_tokens": 48}, "prompts": "p", "views": 2}
    policy = trained(project, "rl", b"one", trained_with=said)
    registry.promote(registry.register(policy), None)
    as_before(policy, 1)
    assert registry.policy("champion").manifest["trained_with"] == said
    assert registry.register(policy) == registry.get("champion") and len(registry.history()) == 1
    again = trained(project, "rl", b"one", trained_with=said | {"turned": {"bias": None}})
    assert registry.register(again) == registry.get("champion")
    other = trained(project, "rl", b"one", trained_with=said | {"settings": {"answer_tokens": 96}})
    assert registry.register(other).name == "v2" and registry.register(other).name == "v2"
    assert registry.policy("champion").manifest["trained_with"] == said


def test_versions_that_differ_in_what_they_were_trained_with_alone_differ_in_that(project):
    said = [{"settings": {"k": k, "rewritten": {"a": "x" * 9000}}, "prompts": "p", "views": 2} for k in (3, 5)]
    first, second = (registry.register(trained(project, "rl", b"one", trained_with=with_these)) for with_these in said)
    assert differences(first, second) == [("trained with settings.k", "3", "5")]
    assert len(first.trained_with["settings.rewritten.a"]) == 5000


def test_of_versions_with_equal_weights_the_parent_is_the_newest_that_is_older_than_the_child(project):
    weights = [b"one", b"one", b"two", b"one"]
    parent = trained(project, "sft", b"one").version
    for k, each in enumerate(weights):
        policy = trained(
            project, "rl", each, parent=parent if each == b"two" else "", trained_with={"settings": {"k": k}}
        )
        registry.register(policy)
    assert [v.name for v in registry.lineage("v3")] == ["v3", "v2"]


def test_a_parent_that_was_registered_after_its_child_is_in_the_lineage(project):
    parent = trained(project, "sft", b"one")
    registry.register(trained(project, "rl", b"two", parent=parent.version))
    registry.register(parent)
    assert [v.name for v in registry.lineage("v1")] == ["v1", "v2"]


def test_a_version_is_fetched_while_others_are_copied(project, monkeypatch):
    version = registry.register(trained(project, "rl", b"one"))
    run = tracking.keep_folder(Path("mlruns/policies", version.content[:12]), "weights")
    tracking.tag_version(MODEL, 1, {"run": run})
    shutil.rmtree("mlruns/policies")
    other = trained(project, "s2", b"two")
    copying, over = threading.Event(), threading.Event()

    def slowly(*arguments, **more) -> PolicySet:
        copying.set()
        assert over.wait(90)
        return publish(*arguments, **more)

    monkeypatch.setattr("dragoman.registry.versions.publish", slowly)
    with ThreadPoolExecutor(1) as pool:
        registered = pool.submit(registry.register, other)
        try:
            assert copying.wait(60)
            assert registry.policy("v1").version == version.policy
        finally:
            over.set()
        assert registered.result().name == "v2"


def test_a_rollback_does_not_wait_for_weights_that_are_sent_to_a_server(project, monkeypatch):
    first, second = (registry.register(trained(project, f"s{i}", bytes([i]))) for i in (1, 2))
    registry.promote(first, None)
    registry.promote(second, first)
    third = trained(project, "s3", b"3")
    sending, over = threading.Event(), threading.Event()

    def keep_folder(*_) -> str:
        sending.set()
        assert over.wait(60)
        return "0" * 32

    monkeypatch.setattr(tracking, "server", lambda: "http://mlflow")
    monkeypatch.setattr(tracking, "keep_folder", keep_folder)
    with ThreadPoolExecutor(1) as other:
        registered = other.submit(registry.register, third)
        try:
            assert sending.wait(60)
            with registry.locked(wait=0):
                pass
            assert [version.name for version in rolled_back(registry)] == ["v1", "v2"]
        finally:
            over.set()
        assert (registered.result().name, registered.result().run) == ("v3", "0" * 32)


def test_equal_weights_with_another_template_are_another_version(project):
    registry.register(trained(project, "rl", b"one"))
    policy = trained(project, "rl", b"one")
    (policy.folder / "chat_template.jinja").write_text("{{ messages }}")
    assert registry.register(policy).name == "v2"
    assert not (registry.policy("v1").folder / "chat_template.jinja").exists()


def test_a_version_holds_a_set(project):
    for folder, weights in (("a", b"1"), ("b", b"2")):
        Path(folder).mkdir()
        Path(folder, "model.safetensors").write_bytes(weights)
        Path(folder, "config.json").write_text("{}")
    policy = publish({"*": Path("a"), "filter": Path("b")}, Path("results/rl"), {"stage": "rl", "system": "c3po"})
    version = registry.register(policy)
    assert (version.policy, set(version.roles)) == (policy.version, {"*", "filter"})
    shutil.rmtree("results")
    kept = registry.policy("v1")
    assert (kept.version, kept.manifest) == (policy.version, policy.manifest)
    assert (kept.of("filter") / "model.safetensors").read_bytes() == b"2"
    assert read_manifest(kept.of("router"))["stage"] == "rl"


def test_a_tag_that_is_no_hash_opens_nothing(project):
    registry.register(trained(project, "rl", b"one"))
    precious = Path("data/precious")
    precious.mkdir(parents=True)
    kept = registry.policy("v1").folder
    tracking.tag_version(MODEL, 1, {"policy": "../../data/precious", "folder": str(precious)})
    assert registry.policy("v1").folder == kept and precious.is_dir()
    tracking.tag_version(MODEL, 1, {"content": "../../etc"})
    with pytest.raises(UserError, match="which is no SHA-256"):
        registry.policy("v1")


def test_the_way_of_the_aliases(project):
    versions = [registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(3)]

    def aliases():
        return {alias: v.name for v in registry.history() for alias in v.aliases}

    with pytest.raises(UserError, match="no champion before this one"):
        registry.way_back()
    registry.challenge(versions[0])
    assert aliases() == {"challenger": "v1"}
    registry.promote(versions[0], None)
    assert aliases() == {"champion": "v1"}
    registry.challenge(versions[2])
    registry.promote(versions[1], versions[0])
    assert aliases() == {"champion": "v2", "previous": "v1", "challenger": "v3"}
    assert [v.name for v in rolled_back(registry)] == ["v1", "v2"]
    assert aliases() == {"champion": "v1", "previous": "v2", "challenger": "v3"}
    assert registry.find("v2").decision.startswith("rolled back 2")
    rolled_back(registry)
    assert aliases() == {"champion": "v2", "previous": "v1", "challenger": "v3"}


def test_there_is_no_rollback_to_weights_that_are_gone(project):
    first, second = (registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(2))
    registry.promote(first, None)
    registry.promote(second, first)
    shutil.rmtree(registry.open(first).folder)
    with pytest.raises(UserError, match=r"v1: the files in .* are not those"):
        registry.way_back()
    assert registry.find("champion").number == second.number


def _promote(number: int, barrier, results) -> None:
    versions = {v.number: v for v in registry.history()}
    barrier.wait()
    try:
        registry.promote(versions[number], versions[1])
        results.put((number, ""))
    except UserError as e:
        results.put((number, str(e)))


@pytest.mark.slow
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


def test_who_waits_for_a_lock_says_so_and_goes_on_when_it_is_let_go(project, monkeypatch, caplog):
    monkeypatch.setattr("dragoman.registry.versions._SILENT_S", 0.01)
    caplog.set_level("INFO")

    def at_it() -> str:
        with registry.locked():
            return "at it"

    with ThreadPoolExecutor(1) as other:
        with registry.locked():
            waiting = other.submit(at_it)
            while "registry.lock: another process is at it; waiting 300 s" not in caplog.text:
                assert not waiting.done()
                time.sleep(0.01)
        assert waiting.result(timeout=300) == "at it"


async def test_the_endpoint_s_champion_is_the_registry_s(project):
    """A real store: what `dragoman promote` and `rollback` do to it is what `dragoman serve` asks it."""
    followed = RegistryChampion(registry)
    assert followed.current() is None
    first, second = (registry.register(trained(project, f"s{i}", bytes([i]))) for i in range(2))
    registry.promote(first, None)
    assert Path(followed.current()).name == first.policy
    registry.promote(second, first)
    assert Path(followed.current()).name == second.policy
    rolled_back(registry)
    assert Path(followed.current()).name == first.policy


def test_the_champion_is_found_without_a_look_at_all_versions(project, monkeypatch):
    from mlflow import MlflowClient

    def every_version(*_, **__):
        raise AssertionError("of hundreds of versions, it takes a second of the processor")

    for i in (1, 2, 3):
        version = registry.register(trained(project, f"s{i}", bytes([i])))
        registry.promote(version, registry.get("champion"))
    history = registry.history()
    monkeypatch.setattr(MlflowClient, "search_model_versions", every_version)
    assert Path(RegistryChampion(registry).current()).name == version.policy
    assert [registry.get(name) for name in ("champion", "v2", "v1")] == history
    assert [registry.get(name) for name in ("challenger", "v4", f"v{10**8}")] == [None] * 3


@pytest.fixture
def server(tmp_path, empty_store, monkeypatch):
    """A real MLflow server without runs, with the login of compose.yaml. Commands find it by the variables."""
    import mlflow

    port = free_port()
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
    command += ["--app-name", "basic-auth"]
    compose = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())
    (folder / "login.ini").write_text(compose["configs"]["login-of-mlflow"]["content"])
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "login.ini"),
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        "MLFLOW_AUTH_ADMIN_USERNAME": "owner",
        "MLFLOW_AUTH_ADMIN_PASSWORD": "a long password",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key",
    }
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "owner")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a long password")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.services
def test_versions_and_runs_are_those_of_the_server_that_is_named(project, server, capsys):
    import mlflow

    assert httpx.post(f"{server}/api/2.0/mlflow/registered-models/create", json={"name": MODEL}).status_code == 401
    assert registry.history() == [] and registry.get("champion") is registry.get("v1") is None
    first = registry.register(trained(project, "sft", b"warm"))
    second = registry.register(trained(project, "rl", b"better", parent=first.policy))
    assert [v.name for v in registry.lineage("v2")] == ["v2", "v1"] and registry.get("champion") is None
    registry.promote(first, None)
    registry.promote(second, registry.find("champion"))
    assert [registry.get(name) for name in ("champion", "previous")] == registry.history()
    assert registry.policy("champion").version == second.policy
    assert [v.name for v in rolled_back(registry)] == ["v1", "v2"]
    shutil.rmtree("mlruns/policies")
    shutil.rmtree("results")
    assert (registry.policy("champion").of("filter") / "model.safetensors").read_bytes() == b"warm"

    (project / "table.md").write_text("| a table |")
    tracking.start()
    run = tracking.log_decision(
        "x", {"a": 1}, [project / "table.md"], tags={}, parameters={"a": 1}, metrics={"b": 2.0}, key="x"
    )
    client = mlflow.MlflowClient(server)
    assert client.get_model_version_by_alias(MODEL, "champion").version == "1"
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

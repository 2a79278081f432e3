"""A promotion or a rollback is killed at any of its steps: the next command carries it out, and it is on record once."""

import asyncio
import json
import multiprocessing
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import mlflow
import pytest
from command import run as command
from filelock import FileLock
from gate import ScriptedRuntime, aliases, gate, prepare, registry

from dragoman import tracking
from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.pipeline import decisions
from dragoman.registry.versions import MODEL, Registry

BETTER = {"c3po@v1": 20, "c3po@v2": 32}
JUDGED = {"champion": "v1", "challenger": "v2"}
MOVED = {"champion": "v2", "previous": "v1"}
STEPS = {
    "judge": JUDGED,
    "note": JUDGED,
    "move previous": JUDGED,
    "move champion": JUDGED | {"previous": "v1"},
    "clear challenger": MOVED | {"challenger": "v2"},
    "record": MOVED,
    "begin its run": MOVED,
    "end its run": MOVED,
    "remove its note": MOVED,
}
"""The steps of a promotion of v2 over v1, in their order, and the aliases as it comes to each."""
KILLED = ("judge", "move champion")
"""Those at which a process is killed: before anything is noted, and while the aliases are of neither."""


@pytest.fixture
def project(tmp_path, monkeypatch, empty_store):
    """Three versions of a system, and data that passed validation."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, empty_store)
    registry.promote(registry.find("v1"), None)
    return tmp_path


def halt_at(step: str, halt, patch) -> None:
    """Let this process call `halt` in the place of a step; `patch` sets an attribute of a module."""
    what, _, alias = step.partition(" ")
    set_alias, log_decision, write_json = tracking.set_alias, tracking.log_decision, files.write_json

    def move(name, moved, number, *more):
        # the challenger got its alias when it was put to the test
        at = moved == alias and not (moved == "challenger" and number is not None)
        (halt if at else set_alias)(name, moved, number, *more)

    def note(path, *more):
        (halt if Path(path).name in (decisions.PROMOTION, decisions.ROLLBACK) else write_json)(path, *more)

    def log(*arguments, **named):
        log_decision(*arguments, **named)
        halt()

    if what in ("move", "clear"):
        patch(tracking, "set_alias", move)
    elif what == "note":
        patch(files, "write_json", note)
    elif what == "record":
        patch(tracking, "tag_version", halt)
    elif what == "begin":
        patch(tracking, "log_decision", halt)
    elif what == "end":
        patch(mlflow, "log_dict", halt)
    elif what == "remove":
        patch(tracking, "log_decision", log)


def on_record(stage: str) -> list[str]:
    """The names of the runs of a stage. Each is whole."""
    client = mlflow.MlflowClient(tracking.store_uri())
    (experiment,) = client.search_experiments(filter_string=f"name = '{tracking.EXPERIMENT}'")
    runs = client.search_runs([experiment.experiment_id], f"tags.stage = '{stage}'", order_by=["start_time"])
    for run in runs:
        assert run.info.status == "FINISHED"
        assert "decision.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    return [run.info.run_name for run in runs]


def no_note() -> bool:
    return not any(Path("mlruns", note).exists() for note in (decisions.PROMOTION, decisions.ROLLBACK))


def _promote_until(step: str, reached) -> None:
    """Promote v2 over v1 in this process, and wait to be killed as soon as `step` begins."""

    def halt(*arguments, **named):
        reached.set()
        time.sleep(600)

    runtime = ScriptedRuntime(BETTER)
    if step == "judge":
        opened = runtime.open
        runtime.open = lambda name: halt() if name == "c3po@v2" else opened(name)
    halt_at(step, halt, setattr)
    asyncio.run(gate(2, runtime))


class Killed(BaseException):
    pass


def dies_at(step: str, monkeypatch, work) -> None:
    """Let `work` end at a step, and leave what a process that is killed there leaves."""

    def die(*arguments, **named):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        halt_at(step, die, patched.setattr)
        work()
    if step == "end its run":  # MLflow has ended it as the exception passed, which no kill lets it do
        mlflow.MlflowClient(tracking.store_uri()).update_run(mlflow.last_active_run().info.run_id, "RUNNING")


def carried_out(runtime: ScriptedRuntime) -> dict[str, Any]:
    """What there is once the next command has come, and another promotion where that settles nothing."""
    shutil.rmtree("results/promote", ignore_errors=True)  # as `make clean` does
    settled = decisions.settle(registry)
    decision = asyncio.run(gate(2, runtime)) if settled is None else settled
    return {
        "settled": settled is not None,
        "promoted": decision.promoted,
        "aliases": aliases(),
        "no note": no_note(),
        "challenger": json.loads(Path("results/promote/decision.json").read_text())["challenger"],
        "of the version": registry.find("v2").decision.split()[0],
        "on record": on_record("promote"),
    }


def once(step: str) -> dict[str, Any]:
    """What there is to be, after a promotion that ended at a step."""
    return {
        "settled": step not in ("judge", "note"),  # before its note nothing is known of it
        "promoted": True,
        "aliases": MOVED,
        "no note": True,
        "challenger": "v2",
        "of the version": "promoted",
        "on record": ["promote v2 against c3po@v1"],
    }


@pytest.mark.process
@pytest.mark.parametrize("step", KILLED)
def test_a_promotion_that_is_killed_is_carried_out_once_and_leaves_no_lock(project, step):
    runtime = ScriptedRuntime(BETTER)
    spawn = multiprocessing.get_context("spawn")
    reached = spawn.Event()
    promoting = spawn.Process(target=_promote_until, args=(step, reached))
    promoting.start()
    try:
        assert reached.wait(240), "the promotion did not come so far"
        with pytest.raises(UserError, match="another process is at it"):
            asyncio.run(gate(2, runtime))
    finally:
        promoting.kill()
        promoting.join()
    assert promoting.exitcode == -signal.SIGKILL
    assert aliases() == STEPS[step]
    assert carried_out(runtime) == once(step)


@pytest.mark.parametrize("step", [step for step in STEPS if step not in KILLED])
@pytest.mark.slow
def test_a_promotion_that_ends_at_any_step_is_carried_out_once(project, monkeypatch, step):
    runtime = ScriptedRuntime(BETTER)
    dies_at(step, monkeypatch, lambda: asyncio.run(gate(2, runtime)))
    assert aliases() == STEPS[step]
    assert carried_out(runtime) == once(step)


@pytest.fixture
def killed_between_the_aliases(project, monkeypatch):
    """A promotion of v3 over v2, which died after `previous` had moved and before `champion` had."""
    registry.promote(registry.find("v2"), registry.find("v1"))
    runtime = ScriptedRuntime({"c3po@v2": 20, "c3po@v3": 32})
    dies_at("move champion", monkeypatch, lambda: asyncio.run(gate(3, runtime)))
    assert aliases() == {"champion": "v2", "previous": "v2", "challenger": "v3"}


def test_a_rollback_after_a_killed_promotion_carries_it_out_first(killed_between_the_aliases):
    champion, gone = decisions.rollback(registry)
    assert (champion.name, gone.name) == ("v2", "v3")
    assert aliases() == {"champion": "v2", "previous": "v3"}
    assert json.loads(Path("results/promote/decision.json").read_text())["promoted"]


async def test_another_promotion_after_a_killed_one_is_compared_with_its_champion(killed_between_the_aliases):
    decision = await gate(1, ScriptedRuntime({"c3po@v3": 32, "c3po@v1": 40}))
    assert decision.champion == "v3" and aliases() == {"champion": "v1", "previous": "v3"}
    assert registry.find("v3").decision.startswith("promoted ")


def test_a_decision_that_was_left_is_refused_where_the_champion_has_changed(killed_between_the_aliases):
    tracking.set_alias(MODEL, "champion", 1)
    settled = decisions.settle(registry)
    assert not settled.promoted and settled.reasons[0].startswith("champion: v3 was compared with the champion v2")
    assert aliases()["champion"] == "v1" and registry.find("v3").decision.startswith("refused ")


def test_a_promotion_that_finds_the_registry_taken_is_not_refused_and_the_next_command_carries_it_out(
    killed_between_the_aliases, monkeypatch
):
    locked = Registry.locked
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "locked", lambda self, name="registry", wait=0: locked(self, name, 0))
        with FileLock("mlruns/registry.lock"), pytest.raises(UserError, match="another process is at it"):
            decisions.settle(registry)
    assert not no_note() and not registry.find("v3").decision
    assert decisions.settle(registry).promoted and aliases() == {"champion": "v3", "previous": "v2"}


@pytest.mark.parametrize("arguments", [["lineage"], ["compare", "v1", "v3"], ["register"]])
def test_a_command_that_shows_or_makes_versions_carries_out_first_what_was_left(
    killed_between_the_aliases, capsys, arguments
):
    Path("conf").mkdir()
    for settings in ("params.yaml", "conf/cpu.yaml"):
        Path(settings).write_text("{policies: [s3]}")
    code, out, err = command(capsys, *arguments)
    assert code == 0 and "v3" in out, err
    assert aliases() == {"champion": "v3", "previous": "v2"} and no_note()


BACK = {
    "note": MOVED,
    "move champion": MOVED,
    "move previous": {"champion": "v1", "previous": "v1"},
    "record": {"champion": "v1", "previous": "v2"},
    "begin its run": {"champion": "v1", "previous": "v2"},
    "end its run": {"champion": "v1", "previous": "v2"},
    "remove its note": {"champion": "v1", "previous": "v2"},
}
"""The steps of a rollback from v2 to v1, and the aliases as it comes to each."""


@pytest.fixture
def second(project):
    """The registry after v2 has become champion, with v1 before it."""
    registry.promote(registry.find("v2"), registry.find("v1"))


@pytest.mark.parametrize("step", BACK)
@pytest.mark.slow
def test_a_rollback_that_was_killed_is_carried_out_by_the_next_and_not_undone(second, monkeypatch, step):
    dies_at(step, monkeypatch, lambda: decisions.rollback(registry))
    assert aliases() == BACK[step]
    assert [version.name for version in decisions.rollback(registry)] == ["v1", "v2"]
    assert aliases() == {"champion": "v1", "previous": "v2"} and no_note()
    assert registry.find("v2").decision.startswith("rolled back 2")
    assert registry.find("v1").decision.startswith("champion again 2")
    assert on_record("rollback") == ["rollback to v1"]
    assert [version.name for version in decisions.rollback(registry)] == ["v2", "v1"]  # the next one is another
    assert on_record("rollback") == ["rollback to v1", "rollback to v2"]


def _roll_back_until(reached) -> None:
    def halt(*arguments, **named):
        reached.set()
        time.sleep(600)

    halt_at("move previous", halt, setattr)
    decisions.rollback(registry)


@pytest.mark.process
def test_a_rollback_whose_process_is_killed_between_the_aliases_is_carried_out_by_another_command(second, capsys):
    spawn = multiprocessing.get_context("spawn")
    reached = spawn.Event()
    process = spawn.Process(target=_roll_back_until, args=(reached,))
    process.start()
    try:
        assert reached.wait(240), "the rollback did not come so far"
    finally:
        process.kill()
        process.join()
    assert aliases() == {"champion": "v1", "previous": "v1"}
    code, _, err = command(capsys, "lineage")
    assert code == 0, err
    assert aliases() == {"champion": "v1", "previous": "v2"} and on_record("rollback") == ["rollback to v1"]


@pytest.mark.parametrize("step", ["move champion", "move previous"])
async def test_a_rollback_that_is_killed_while_a_challenger_is_judged_stops_the_promotion(second, monkeypatch, step):
    runtime = ScriptedRuntime({"c3po@v2": 20, "c3po@v3": 32})
    opened = runtime.open

    def open_and_roll_back(name):
        if name == "c3po@v3" and aliases() == MOVED | {"challenger": "v3"}:
            dies_at(step, monkeypatch, lambda: decisions.rollback(registry))
        return opened(name)

    runtime.open = open_and_roll_back
    decision = await gate(3, runtime)
    assert not decision.promoted and "the champion is v1 by now" in decision.reasons[0]
    assert aliases() == {"champion": "v1", "previous": "v2", "challenger": "v3"} and no_note()
    assert on_record("rollback") == ["rollback to v1"]


def test_a_rollback_that_was_left_is_dropped_where_the_champion_has_changed(second, monkeypatch, caplog):
    dies_at("move champion", monkeypatch, lambda: decisions.rollback(registry))
    tracking.set_alias(MODEL, "champion", 3)
    assert decisions.settle(registry) is None and no_note()
    assert aliases() == {"champion": "v3", "previous": "v1"} and "another one is champion by now" in caplog.text
    assert on_record("rollback") == []


def test_a_rollback_of_which_the_champion_changes_meanwhile_says_so(second, monkeypatch):
    write_json = files.write_json

    def write_while_the_champion_changes(path, value):
        write_json(path, value)
        tracking.set_alias(MODEL, "champion", 3)

    monkeypatch.setattr(files, "write_json", write_while_the_champion_changes)
    with pytest.raises(UserError, match="the champion has changed meanwhile: nothing was moved"):
        decisions.rollback(registry)
    assert aliases() == {"champion": "v3", "previous": "v1"} and no_note()


def full(*arguments, **named):
    raise OSError(28, "No space left on device")


@pytest.fixture
def not_recorded(project, monkeypatch):
    """A promotion of v2 over v1 whose aliases have moved; the disk that is to have its record is full."""
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "log_decision", full)
        with pytest.raises(OSError, match="No space left"):
            asyncio.run(gate(2, ScriptedRuntime(BETTER)))
        assert aliases() == MOVED and not no_note()
        yield patch


def test_a_rollback_moves_the_champion_where_a_promotion_cannot_be_recorded(not_recorded):
    with pytest.raises(OSError, match="No space left"):  # nor can the rollback
        decisions.rollback(registry)
    assert aliases() == {"champion": "v1", "previous": "v2"}
    not_recorded.undo()
    assert isinstance(decisions.settle(registry), decisions.Rollback) and no_note()
    assert aliases() == {"champion": "v1", "previous": "v2"}
    assert registry.find("v2").decision.startswith("rolled back 2")
    assert on_record("promote") == ["promote v2 against c3po@v1"] and on_record("rollback") == ["rollback to v1"]


def test_a_promotion_that_was_not_recorded_is_not_carried_out_again_after_a_way_back(not_recorded, caplog):
    logged = []
    not_recorded.setattr(tracking, "log_decision", lambda name, *_, **__: logged.append(name))
    not_recorded.setattr(decisions, "table", full)  # the promotion's files alone find no room
    assert [version.name for version in decisions.rollback(registry)] == ["v1", "v2"]
    assert logged == ["rollback to v1"]
    assert "is left to a later command: [Errno 28]" in caplog.text and not no_note()
    not_recorded.undo()
    assert decisions.settle(registry).promoted and no_note()
    assert aliases() == {"champion": "v1", "previous": "v2"}
    assert registry.find("v2").decision.startswith("rolled back 2")


def test_a_command_that_shows_versions_does_so_where_a_decision_cannot_be_recorded(not_recorded, capsys):
    code, out, _ = command(capsys, "lineage")
    assert code == 0 and "champion" in out and not no_note()


def test_a_version_that_was_rolled_back_stays_so_when_it_is_refused_by_name_and_not_when_it_is_promoted(second):
    decisions.rollback(registry)
    for _ in range(2):
        assert not asyncio.run(gate(2, ScriptedRuntime({"c3po@v1": 32, "c3po@v2": 20}))).promoted
        said = registry.find("v2").decision
        assert said.startswith("rolled back 2") and said.count("; refused 2") == 1
    shutil.rmtree("results/promote")  # else its answers of before count
    assert asyncio.run(gate(2, ScriptedRuntime(BETTER))).promoted
    assert registry.find("v2").decision.startswith("promoted 2")

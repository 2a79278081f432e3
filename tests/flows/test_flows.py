"""The bodies of the flows, on a real Prefect server, with stubs for the commands that they run."""

import asyncio
import importlib
import json
import pickle
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Running

from dragoman.core.exits import DRIFTED
from flows import commands, deployments
from flows.chain import chain
from flows.drift import drift
from flows.evaluate_and_promote import evaluate_and_promote
from flows.in_shards import in_shards
from flows.pair import pair
from flows.retrain import retrain
from flows.side_by_side import beside_others
from flows.train_proxy import train_proxy

ROOT = Path(__file__).parents[2]
REPRO = "dvc --wait-for-lock repro"

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(1800)]


@flow
async def report() -> None:
    await commands.reproduce("report")
    await commands.publish("report", Path("results/report/table.md"))


@flow
async def sft() -> None:
    await commands.reproduce("sft")


def leaves(path: str, value) -> dict:
    return {"writes": {path: value if isinstance(value, str) else json.dumps(value)}}


@pytest.fixture
def project(stub):
    """A project in which every command succeeds and leaves what it leaves."""
    trained = {
        f"results/{stage}/metrics.json": json.dumps({"dev_reward": 0.5, "stopped": ""}) for stage in ("sft", "rl")
    }
    files = {**trained, "results/seeds/metrics.json": "{}", "results/report/table.md": "| a table |"}
    decision = {"promoted": True, "challenger": "v2", "against": "c3po@v1", "reasons": []}
    promoted = {"results/promote/decision.json": json.dumps(decision), "results/promote/table.md": "| why |"}
    stub.tell({
        **{f"{REPRO}{stage}": [{"writes": files}] for stage in ("", " sft", " seeds", " rl", " report")},
        f"{REPRO} evaluate evaluate-policy report": [{"writes": files}],
        "dragoman validate": [leaves("results/validate/metrics.json", {"failed": 0})],
        "dragoman promote": [{"writes": promoted}],
    })  # fmt: skip
    return stub


async def artifact(key: str) -> str:
    async with get_client() as client:
        found = await client.read_latest_artifacts(
            artifact_filter=ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[key]))
        )
    return found[0].data


async def test_training_chains_its_stages_and_registers_the_policy(project):
    state = await train_proxy(return_state=True)
    assert state.is_completed() and state.name == "Completed"
    assert project.commands == [f"{REPRO} seeds", f"{REPRO} sft", f"{REPRO} rl", "dragoman register"]
    assert "| dev_reward | 0.5 |" in await artifact("rl")


async def test_a_collapse_is_seen_in_the_state(project):
    project.tell({f"{REPRO} rl": [leaves("results/rl/metrics.json", {"stopped": "kl is 2.000, beyond its guard"})]})
    state = await train_proxy(return_state=True)
    assert state.is_completed() and state.name == "Collapsed" and "kl is 2.000" in state.message


CHAIN = ["debate", "answer-1", "answer-2", "query", "label", "judge", "evaluate"]


@pytest.fixture
def chained(project):
    """The same, for the steps of the chain on a dataset whose name no artifact could have."""
    for step in CHAIN:
        left = {"stopped": "", "dev_reward": 0.5}
        writes = {f"results/chain/my_set/{step}/metrics.json": json.dumps(left)}
        writes |= {"results/chain/my_set/evaluate/table.md": "| maps |"} if step == "evaluate" else {}
        project.tell({f"{REPRO} chain-{step}@my_set": [{"writes": writes}]})
    return project


async def test_a_chain_goes_step_by_step_and_shows_each(chained):
    state = await chain(dataset="my_set", return_state=True)
    assert state.is_completed() and state.name == "Completed"
    assert chained.commands == [f"{REPRO} chain-{step}@my_set" for step in CHAIN]
    assert "| dev_reward | 0.5 |" in await artifact("chain-answer-2") and await artifact("chain") == "| maps |"


async def test_a_chain_of_which_a_step_collapsed_says_so_and_goes_on(chained):
    collapsed = leaves("results/chain/my_set/query/metrics.json", {"stopped": "kl is 2.000, beyond its guard"})
    chained.tell({f"{REPRO} chain-query@my_set": [collapsed]})
    state = await chain(dataset="my_set", return_state=True)
    assert state.is_completed() and state.name == "Collapsed" and "chain-query: kl is 2.000" in state.message
    assert chained.commands[-1] == f"{REPRO} chain-evaluate@my_set"


async def test_a_chain_on_a_dataset_that_is_not_turned_on_ends_at_its_first_step(chained, no_waits):
    words = "ERROR: Stage 'chain-debate@atlas' not found inside 'dvc.yaml' file"
    chained.tell({f"{REPRO} chain-debate@atlas": [{"code": 255, "say": words}]})
    state = await chain(return_state=True)
    assert state.is_failed() and chained.commands == [f"{REPRO} chain-debate@atlas"]
    assert "Stage 'chain-debate@atlas' not found" in str(await state.aresult(raise_on_failure=False))


async def test_a_pair_shows_its_training_and_its_scores(project):
    folder, command = "results/pairs/mrag-selftrain", f"{REPRO} pairs@mrag-selftrain"
    left = {
        f"{folder}/rl/metrics.json": json.dumps({"stopped": "kl is 2.000, beyond its guard", "dev_reward": 0.5}),
        f"{folder}/evaluate/table.md": "| mrag |",
    }
    project.tell({command: [{"writes": left}]})
    state = await pair(return_state=True)
    assert project.commands == [command]
    assert state.is_completed() and state.name == "Collapsed" and "kl is 2.000" in state.message
    assert "| dev_reward | 0.5 |" in await artifact("pair") and await artifact("pair-scores") == "| mrag |"


async def test_retrain_ends_in_what_the_gate_decided(project):
    state = await retrain(return_state=True)
    assert state.name == "Promoted" and state.message == "v2 against c3po@v1"
    evaluated = f"{REPRO} evaluate evaluate-policy report"
    assert project.commands == [REPRO, evaluated, "dragoman validate", "dragoman promote"]
    assert await artifact("report") == "| a table |" and await artifact("promotion") == "| why |"


async def test_a_refusal_is_no_failure_and_says_why(project):
    decision = {"promoted": False, "reasons": ["gain in cover_em: too small"]}
    writes = {"results/promote/decision.json": json.dumps(decision), "results/promote/table.md": "| why not |"}
    project.tell({"dragoman promote": [{"writes": writes, "code": 3}]})
    state = await evaluate_and_promote(return_state=True)
    assert state.is_completed() and state.name == "Refused" and state.message == "gain in cover_em: too small"
    assert await artifact("promotion") == "| why not |"


async def test_nothing_new_is_said_to_be_nothing_new(project):
    project.tell({"dragoman promote": [{"say": "v2 is the champion already"}]})
    assert (await evaluate_and_promote(return_state=True)).name == "Unchanged"


async def test_what_another_run_has_decided_meanwhile_is_not_told_as_its_own(project, monkeypatch):
    project.tell({"dragoman promote": [{"say": "v2 is the champion already"}]})
    alone = commands.concurrency

    @asynccontextmanager
    async def after_another(*arguments, **options) -> AsyncIterator[None]:
        async with alone(*arguments, **options):
            if project.commands[-1:] == ["dragoman validate"]:
                Path("results/promote").mkdir()
                Path("results/promote/decision.json").write_text('{"challenger": "v2", "against": "c3po@v1"}')
            yield

    monkeypatch.setattr(commands, "concurrency", after_another)
    assert (await evaluate_and_promote(return_state=True)).name == "Unchanged"
    assert project.commands[-1] == "dragoman promote" and Path("results/promote/decision.json").exists()


@asynccontextmanager
async def nightly(**parameters: bool) -> AsyncIterator[None]:
    """A run of the deployment `nightly` that is under way."""
    async with get_client() as client:
        deployment = await client.create_deployment(await client.create_flow(retrain), "nightly")
        run = await client.create_flow_run_from_deployment(deployment, parameters=parameters)
        await client.set_flow_run_state(run.id, Running(), force=True)
        yield
        await client.set_flow_run_state(run.id, Completed(), force=True)


async def test_beside_a_nightly_run_the_weekly_one_is_skipped_and_the_gate_of_the_night_is_not(project):
    async with nightly():
        state = await evaluate_and_promote(return_state=True)
        assert state.is_completed() and state.name == "Skipped" and project.commands == []
        assert (await retrain(return_state=True)).name == "Promoted"


async def test_a_nightly_run_without_the_gate_leaves_that_to_the_weekly_one(project):
    async with nightly(promote=False):
        assert (await evaluate_and_promote(return_state=True)).name == "Promoted"


async def test_a_nightly_run_that_has_taken_longer_than_one_may_is_dead_and_keeps_no_weekly_one(project, monkeypatch):
    monkeypatch.setattr("flows.evaluate_and_promote.NIGHT", -60)
    async with nightly():
        assert (await evaluate_and_promote(return_state=True)).name == "Promoted"


async def test_bad_data_keeps_the_challenger_from_the_gate(project):
    project.tell({"dragoman validate": [{"code": 2, "say": "error: corpus.jsonl:7 has no text"}]})
    state = await retrain(return_state=True)
    assert state.is_failed() and "dragoman promote" not in project.commands
    assert project.commands.count("dragoman validate") == 1
    assert "corpus.jsonl:7" in str(await state.aresult(raise_on_failure=False))


async def test_what_fails_is_tried_again(project, no_waits):
    project.tell(
        {f"{REPRO} report": [{"code": 1, "say": "a server hung up"}, leaves("results/report/table.md", "| ok |")]}
    )
    assert (await report(return_state=True)).is_completed()
    assert project.commands == [f"{REPRO} report"] * 2 and await artifact("report") == "| ok |"


async def test_what_goes_on_failing_fails_the_run_with_its_last_words(project, no_waits):
    project.tell({f"{REPRO} report": [{"code": 1, "say": "disk full"}]})
    state = await report(return_state=True)
    assert state.is_failed() and len(project.commands) == 1 + commands.RETRIES
    assert "exit code 1" in str(error := await state.aresult(raise_on_failure=False)) and "disk full" in str(error)


async def test_bad_input_is_not_tried_again(project, no_waits):
    words = "ERROR: failed to reproduce 'sft': failed to run: dragoman sft, exited with 2"
    project.tell({f"{REPRO} sft": [{"code": 255, "say": words}]})
    assert (await sft(return_state=True)).is_failed() and len(project.commands) == 1


async def test_only_one_command_runs_at_a_time(project):
    project.tell({"dvc one": [{"sleep": 2}], "dvc two": [{"sleep": 2}]})

    @flow
    async def both() -> None:
        await asyncio.gather(commands.run(["dvc", "one"]), commands.run(["dvc", "two"]))

    await both()
    first, second = sorted(project.calls, key=lambda call: call["started"])
    assert second["started"] >= first["ended"]


async def test_a_command_that_takes_too_long_is_ended(project, monkeypatch):
    project.tell({f"{REPRO} report": [{"sleep": 600}]})
    monkeypatch.setattr(commands, "GRACE", 1.0)
    state = await report.with_options(timeout_seconds=6)(return_state=True)
    assert state.name == "TimedOut" and project.calls == []
    deadline = time.monotonic() + 150  # half of what a lease lasts by itself
    async with get_client() as client:
        while (await client.read_global_concurrency_limit_by_name(commands.LIMIT)).active_slots:
            assert time.monotonic() < deadline, "the next run has to wait"
            await asyncio.sleep(0.5)


TREES = {"system": "c3po@champion", "tree": True, "limit": 9}
ROLLOUT = "dragoman rollout --system=c3po@champion --tree --limit=9 --out=results/rollout"


async def roll_out(**more):
    return await in_shards("rollout", "results/rollout", TREES, **more)


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"runner": "slurm"}, {"command": "promote"}], ids=str)
async def test_parameters_are_checked_before_anything_runs(project, wrong):
    state = await in_shards(**{"command": "rollout", "out": "results/x"} | wrong, return_state=True)
    assert state.is_failed() and project.commands == []
    assert next(iter(wrong)) in str(await state.aresult(raise_on_failure=False))


async def test_a_rollout_on_demand(project):
    project.tell({ROLLOUT: [leaves("results/rollout/metrics.json", {"reward": 0.25})]})
    await roll_out()
    assert project.commands == [ROLLOUT] and "| reward | 0.25 |" in await artifact("rollout")


async def test_an_evaluation_on_demand_shows_its_table(project):
    command = "dragoman evaluate --systems=direct,c3po --no-track --out=results/mine"
    project.tell({command: [leaves("results/mine/table.md", "| direct | 0.25 |")]})
    await in_shards("evaluate", "results/mine", {"systems": "direct,c3po", "track": False})
    assert project.commands == [command] and "| direct | 0.25 |" in await artifact("evaluate")


async def test_an_option_with_blanks_is_no_further_argument(project, monkeypatch):
    run: list[list[str]] = []

    async def execute(command, expected):
        run.append(list(command))
        return 0

    monkeypatch.setattr(commands, "execute", execute)
    await in_shards("rollout", "results", {"system": "direct --set llm.urls=[http://evil/v1]"}, return_state=True)
    assert run == [["dragoman", "rollout", "--system=direct --set llm.urls=[http://evil/v1]", "--out=results"]]


async def test_shards_run_beside_each_other_and_are_merged(project):
    project.tell({
        **{f"{ROLLOUT} --shard={own}/2": [{"writes": {f"began-{own}": ""}, "awaits": f"began-{other}"}] for own, other in ((1, 2), (2, 1))},
        f"{ROLLOUT} --merge=2": [leaves("results/rollout/metrics.json", {"reward": 0.25})],
    })  # fmt: skip
    await roll_out(shards=2)
    first, second, merged = sorted(project.calls, key=lambda call: call["started"])
    assert {first["command"], second["command"]} == {f"{ROLLOUT} --shard=1/2", f"{ROLLOUT} --shard=2/2"}
    assert second["started"] < first["ended"], "beside each other"
    assert merged["command"] == f"{ROLLOUT} --merge=2" and merged["started"] > second["ended"]
    assert "| reward | 0.25 |" in await artifact("rollout")


async def test_a_shard_that_fails_is_tried_again_alone(project, monkeypatch):
    monkeypatch.setattr(beside_others, "retry_delay_seconds", [0, 0])
    project.tell({
        f"{ROLLOUT} --shard=2/2": [{"code": 1, "say": "a server hung up"}, {}],
        f"{ROLLOUT} --merge=2": [leaves("results/rollout/metrics.json", {"reward": 0.25})],
    })  # fmt: skip
    assert (await roll_out(shards=2, return_state=True)).is_completed()
    assert [project.commands.count(f"{ROLLOUT} --shard={number}/2") for number in (1, 2)] == [1, 2]


async def test_nothing_is_merged_when_a_shard_has_bad_input(project):
    project.tell({f"{ROLLOUT} --shard=1/2": [{"code": 2, "say": "error: take fewer shards"}]})
    state = await roll_out(shards=2, return_state=True)
    assert state.is_failed() and "take fewer shards" in str(await state.aresult(raise_on_failure=False))
    assert f"{ROLLOUT} --merge=2" not in project.commands


async def test_shards_end_with_the_time_of_their_flow(project):
    project.tell({f"{ROLLOUT} --shard={number}/2": [{"sleep": 600}] for number in (1, 2)})
    started = time.monotonic()
    limited = in_shards.with_options(timeout_seconds=4)
    state = await limited("rollout", "results/rollout", TREES, shards=2, return_state=True)
    assert state.name == "TimedOut" and time.monotonic() - started < 300
    assert project.calls == [] and not commands._running


def test_what_a_command_said_comes_back_from_another_process():
    said = commands.CommandFailed(["dvc", "repro"], 255, ["failed to run: dragoman sft, exited with 2"])
    back = pickle.loads(pickle.dumps(said))
    assert str(back) == str(said) and "exit code 255" in str(back) and not back.retriable


def test_every_flow_belongs_to_a_deployment():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    used = {deployment["entrypoint"].partition(":")[0] for deployment in deployments}
    files = {f"flows/{path.name}" for path in (ROOT / "flows").glob("*.py")}
    apart = {"__init__", "commands", "deployments", "side_by_side", "tied"}
    assert files - used == {f"flows/{name}.py" for name in apart}


def test_deployments_name_flows_and_refuse_overlap():
    prefect = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    deployments = {d["name"]: d for d in prefect["deployments"]}
    on_demand = {"train", "chain", "pair", "synthesize", "rollout", "seeds", "evaluate", "bench", "sweep"}
    assert set(deployments) == {"nightly", "drift", "alarm", "weekly"} | on_demand
    for deployment in deployments.values():
        file, _, name = deployment["entrypoint"].partition(":")
        found = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
        assert set(deployment.get("parameters", {})) <= set(found.parameters.properties)
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
        for schedule in deployment.get("schedules", []):
            assert schedule["timezone"] and len(schedule["cron"].split()) == 5


async def test_an_alarm_goes_on_counting_when_deployments_are_registered_again_unless_its_entry_has_changed(
    stub, monkeypatch
):
    shutil.copytree(ROOT / "flows", "flows", ignore=shutil.ignore_patterns("__pycache__"))
    settings = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    settings["deployments"] = [d for d in settings["deployments"] if d["name"] in ("nightly", "alarm")]
    Path("prefect.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    monkeypatch.setenv("PWD", str(stub.folder))

    async def registered() -> dict[str, tuple]:
        """Who waits how long, by the name of the automation, after `python -m flows.deployments`."""
        await asyncio.to_thread(deployments.main)
        async with get_client() as client:
            return {
                made.name: (made.id, made.trigger.within.total_seconds()) for made in await client.read_automations()
            }

    async with get_client() as client:
        await client.create_work_pool(WorkPoolCreate(name="dragoman", type="process"))
    first, again = await registered(), await registered()
    assert first.keys() == {"alarm__automation_1", "nightly__automation_1"}
    assert again["alarm__automation_1"] == first["alarm__automation_1"]
    assert again["nightly__automation_1"][0] != first["nightly__automation_1"][0], "as Prefect does it"
    settings["deployments"][1]["triggers"][0]["within"] = 3600
    Path("prefect.yaml").write_text(yaml.safe_dump(settings))
    changed = await registered()
    assert changed.keys() == first.keys() and changed["alarm__automation_1"][1] == 3600


def drifted(policy: str, alarm: dict | None) -> list[dict]:
    metrics = json.dumps({"policy": policy, "alarm": alarm})
    writes = {"results/drift/metrics.json": metrics, "results/drift/table.md": "| kind |"}
    return [{"writes": writes, "code": DRIFTED if alarm else 0}]


async def test_drift_is_told_once_for_each_policy(project):
    states = []
    for policy, alarm in (
        ("p1", None),
        ("p1", {"measure": "kind", "at": 1.0}),
        ("p1", {"measure": "kind", "at": 1.0}),
        ("p2", {"measure": "words", "at": 9.0}),
    ):
        project.tell({"dragoman drift": drifted(policy, alarm)})
        (project.folder / "calls.jsonl").unlink(missing_ok=True)
        states.append(await drift(return_state=True))
    assert [state.name for state in states] == ["Steady", "Drifted", "Unchanged", "Drifted"]
    assert states[3].message == "policy p2: first in words" and await artifact("drift") == "| kind |"


def test_a_state_of_the_flow_drift_starts_the_nightly_run():
    """Prefect calls the event of a state `prefect.flow-run.NAME`."""
    from prefect.events import DeploymentEventTrigger

    nightly = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"][0]
    (trigger,) = map(DeploymentEventTrigger.model_validate, nightly["triggers"])
    assert nightly["entrypoint"] == "flows/retrain.py:retrain" and trigger.enabled
    assert trigger.expect == {"prefect.flow-run.Drifted"} and trigger.threshold == 1


async def test_a_place_that_nobody_gives_back_ends_the_wait_and_says_what_to_do(project, monkeypatch):
    monkeypatch.setattr(commands, "WAIT", 1.0)
    async with commands.exclusive_access():
        with pytest.raises(commands.StillTaken, match="`make up` frees it"):
            async with commands.exclusive_access():
                pass
    async with commands.exclusive_access():  # it was given back
        pass

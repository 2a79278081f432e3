"""The flow `sweep` on a real Prefect server, with stubs for the commands that it runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey

from flows import commands
from flows.sweep import sweep

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(1800)]

OUT = "results/sweeps/price"
PRICES = {"rl.price": [0, 0.1]}
FREE, DEAR = (f"dragoman rl --set=rl.price={price} --out={OUT}/rl.price-{price}" for price in (0, 0.1))


def trained(price: float, reward: float, before: float = 0.25) -> dict:
    metrics = {"dev_reward": reward, "first": {"dev_reward": before, "recall": 0.5}, "iterations": 4}
    return {"writes": {f"{OUT}/rl.price-{price}/metrics.json": json.dumps(metrics)}}


async def test_each_point_of_a_grid_is_a_command_and_a_row_of_the_table(stub):
    folder = "results/wide"
    asked = "dragoman evaluate --systems=c3po --no-track"
    points = {("true", "[1, 2]"): "true-rl.breadth-1-2-", ("false", "[1, 2]"): "false-rl.breadth-1-2-"}
    for (flag, breadth), name in points.items():
        score = {"mean": 0.5, "low": 0.4, "high": 0.6} if flag == "true" else {"mean": 0.3, "low": 0.2, "high": 0.4}
        metrics = {"n": 9, "systems": {"c3po": {"cover_em": score, "calls": 1.5}}, "paired": {}}
        command = f"{asked} --set=a.b={flag} --set=rl.breadth={breadth} --out={folder}/a.b-{name}"
        stub.tell({command: [{"writes": {f"{folder}/a.b-{name}/metrics.json": json.dumps(metrics)}}]})
    grid = {"a.b": [True, False], "rl.breadth": [[1, 2]]}
    state = await sweep("evaluate", folder, grid, {"systems": "c3po", "track": False}, return_state=True)
    assert state.is_completed() and stub.commands == list(stub.plan)
    rows = [
        "| a.b | rl.breadth | systems.c3po.cover_em |",
        "|---|---|---|",
        "| true | [1, 2] | 0.50 [0.40, 0.60] |",
        "| false | [1, 2] | 0.30 [0.20, 0.40] |",
    ]
    table = Path(folder, "table.md").read_text()
    assert table.splitlines()[-4:] == rows
    async with get_client() as client:
        found = await client.read_latest_artifacts(
            artifact_filter=ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=["sweep-evaluate"]))
        )
    assert found[0].data == table


async def test_a_point_that_fails_is_named_while_the_others_go_on_and_is_done_by_the_next_run(stub):
    left = Path(OUT, "rl.price-0", "metrics.json")  # by an earlier run, under other options
    left.parent.mkdir(parents=True)
    left.write_text(json.dumps({"dev_reward": 0.99}))
    stub.tell({
        FREE: [{"code": 2, "say": "error: no | such\tcorpus"}, trained(0, 0.5)],
        DEAR: [trained(0.1, 0.375)],
    })  # fmt: skip
    state = await sweep("rl", OUT, PRICES, return_state=True)
    assert state.is_failed() and state.message == "1 of 2 points failed: rl.price-0"
    rows = [
        "| rl.price | dev_reward | first.dev_reward | failed |",
        "|---|---|---|---|",
        "| 0 | – | – | error: no \\| such corpus |",
        "| 0.1 | 0.375 | 0.25 | – |",
    ]
    assert Path(OUT, "table.md").read_text().splitlines()[-4:] == rows
    assert (await sweep("rl", OUT, PRICES, return_state=True)).is_completed()
    assert stub.commands == [FREE, DEAR, FREE, DEAR], "the commands know what is finished"
    assert Path(OUT, "table.md").read_text().splitlines()[-2:] == ["| 0 | 0.5 | 0.25 |", "| 0.1 | 0.375 | 0.25 |"]


async def test_another_score_is_shown_where_one_is_named(stub):
    stub.tell({FREE: [trained(0, 0.5)], DEAR: [trained(0.1, 0.25)]})
    await sweep("rl", OUT, PRICES, score="recall")
    assert "| rl.price | first.recall |\n|---|---|\n| 0 | 0.5 |\n" in Path(OUT, "table.md").read_text()


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, "settings"), ({"rl.price": []}, "settings"), ({"rl.price": [0, 0]}, "same folder")],
    ids=["no setting", "no value", "one value twice"],
)
async def test_a_grid_that_cannot_be_one_is_refused_before_anything_runs(stub, settings, told):
    state = await sweep("rl", OUT, settings, return_state=True)
    assert state.is_failed() and stub.commands == []
    assert told in str(await state.aresult(raise_on_failure=False))


@pytest.mark.parametrize("at_once", [1, 2])
async def test_no_more_points_than_that_run_at_once(stub, at_once):
    free, dear = trained(0, 0.5), trained(0.1, 0.5)
    for own, other in ((free, dear), (dear, free)):
        own |= {"sleep": 2} if at_once == 1 else {"awaits": next(iter(other["writes"]))}
    stub.tell({FREE: [free], DEAR: [dear]})
    await sweep("rl", OUT, PRICES, at_once=at_once)
    first, second = sorted(stub.calls, key=lambda call: call["started"])
    assert (second["started"] < first["ended"]) == (at_once == 2)


async def test_points_end_with_the_time_of_their_flow_and_none_begins_after_it(stub):
    stub.tell({each: [{"sleep": 600, "writes": {f"begun-{n}": ""}}] for n, each in enumerate((FREE, DEAR))})
    started = time.monotonic()
    state = await sweep.with_options(timeout_seconds=4)("rl", OUT, PRICES, return_state=True)
    assert state.name == "TimedOut" and time.monotonic() - started < 300
    assert not commands._running and not stub.calls
    assert not Path("begun-1").exists()

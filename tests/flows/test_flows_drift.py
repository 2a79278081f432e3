"""The flow `drift` by itself: of which alarm a run tells. That Prefect starts what it should is in `test_flows.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.core.exits import DRIFTED
from flows import drift as module
from flows.drift import DRIFT, drift


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Says what the next `dragoman drift` finds."""
    monkeypatch.chdir(tmp_path)
    alarms: list[tuple[str, dict | None]] = []

    async def run(command, expected):
        policy, alarm = alarms[-1]
        DRIFT.mkdir(parents=True, exist_ok=True)
        (DRIFT / "metrics.json").write_text(json.dumps({"policy": policy, "alarm": alarm}))
        return DRIFTED if alarm else 0

    async def publish(key: str, path: Path) -> None: ...

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "publish", publish)
    return alarms


async def state() -> str:
    return (await drift.fn()).name


async def test_an_alarm_that_a_person_or_a_run_that_failed_has_seen_is_still_told(found, monkeypatch):
    found.append(("p1", {"measure": "kind", "at": 5.0}))
    await module.run(["dragoman", "drift"], (0, DRIFTED))  # by hand

    async def away(key: str, path: Path) -> None:
        raise ConnectionError("the server is away")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(module, "publish", away)
        await drift.fn()
    assert [await state(), await state()] == ["Drifted", "Unchanged"]


async def test_an_alarm_of_an_earlier_champion_is_not_told_again_after_a_rollback(found):
    first, second = ("p1", {"measure": "kind", "at": 5.0}), ("p2", {"measure": "words", "at": 9.0})
    states = []
    for alarm in (first, ("p2", None), second, first, second):
        found.append(alarm)
        states.append(await state())
    assert states == ["Drifted", "Steady", "Drifted", "Unchanged", "Unchanged"]

"""What the scheduler is measured against: that requests go out one at a time, or in lock-step, to several engines."""

import asyncio
from collections.abc import Sequence

import pytest

from benchmarks.scheduler import Around, LockStep, OneAtATime
from dragoman.engines.base import Request, Result


class Noting:
    """An engine that notes its batches, the most requests that were out at once, and when a batch was answered."""

    fingerprint = "noting"

    def __init__(self, events: list[str], turns: int) -> None:
        self.events, self.turns, self.batches = events, turns, []

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        self.batches.append(len(requests))
        self.events.append("out")
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.events.append("answered")
        return [Result((), (), request.max_tokens, 0) for request in requests]


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def engines(events):
    return Noting(events, turns=1), Noting(events, turns=100)


async def ask_all(sender, engines, events: list[str], each: int = 3) -> None:
    async def ask(engine) -> None:
        await Around(engine, sender).generate([Request((), 1)])
        events.append("back")

    await asyncio.gather(*(ask(engine) for engine in engines for _ in range(each)))


async def test_one_at_a_time_sends_the_next_request_when_the_last_is_answered_though_there_are_two_engines(
    engines, events
):
    await ask_all(OneAtATime(), engines, events)
    assert [event for event in events if event != "back"] == ["out", "answered"] * 6


async def test_lock_step_sends_each_engine_one_batch_and_gives_back_nothing_before_all_are_answered(engines, events):
    await ask_all(LockStep(quiet=0.001), engines, events)
    assert [engine.batches for engine in engines] == [[3], [3]]
    assert events == ["out", "answered"] * 2 + ["back"] * 6

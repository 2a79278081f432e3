"""What the scheduler is measured against: that requests go out one at a time, or in lock-step, to several engines."""

import asyncio
from collections.abc import Sequence

import pytest

from benchmarks.scheduler import Around, LockStep, OneAtATime
from dragoman.core.errors import EngineFault
from dragoman.engines.base import Request, Result


class Noting:
    """An engine that notes its batches, the most requests that were out at once, and when a batch was answered."""

    fingerprint = "noting"
    fails_at = 0

    def __init__(self, events: list[str], turns: int) -> None:
        self.events, self.turns, self.batches = events, turns, []

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        self.batches.append(len(requests))
        self.events.append("out")
        if requests[0].max_tokens == self.fails_at:
            raise EngineFault("too long")
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


async def test_lock_step_sends_each_engine_all_that_waits_and_gives_back_nothing_before_all_are_answered(
    engines, events
):
    await ask_all(LockStep(quiet=0.001), engines, events)
    assert [engine.batches for engine in engines] == [[1] * 3, [1] * 3]
    assert events == [*["out"] * 3, *["answered"] * 3] * 2 + ["back"] * 6


@pytest.mark.timeout(120)
async def test_in_lock_step_a_request_that_fails_or_is_given_up_keeps_nobody_waiting(engines):
    engine, sender = engines[0], LockStep(quiet=0.001)
    engine.fails_at = 2
    wrapped = Around(engine, sender)
    given_up = asyncio.create_task(wrapped.generate([Request((), 3)]))
    asked = asyncio.gather(*(wrapped.generate([Request((), n)]) for n in (1, 2)), return_exceptions=True)
    await asyncio.sleep(0)
    given_up.cancel()
    right, fault = await asked
    assert right[0].prompt_tokens == 1 and isinstance(fault, EngineFault)
    (later,) = await wrapped.generate([Request((), 4)])
    assert later.prompt_tokens == 4

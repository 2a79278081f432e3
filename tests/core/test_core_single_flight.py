"""One computation for all who ask for it at once."""

import asyncio

import pytest

from dragoman.core.single_flight import SingleFlight


class Computed:
    def __init__(self):
        self.times = 0
        self.gate = asyncio.Event()

    async def __call__(self):
        self.times += 1
        await self.gate.wait()
        if self.times > 1:
            raise ValueError("gone")
        return self.times


async def asked(flight, compute, callers):
    tasks = [asyncio.create_task(flight.run("key", compute)) for _ in range(callers)]
    await asyncio.sleep(0)
    return tasks


async def test_callers_at_once_share_one_computation_and_a_later_one_computes_anew():
    flight, compute = SingleFlight(), Computed()
    tasks = await asked(flight, compute, 3)
    compute.gate.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1] and (compute.times, flight.shared) == (1, 2)
    results = await asyncio.gather(*await asked(flight, compute, 2), return_exceptions=True)
    assert [str(r) for r in results] == ["gone", "gone"] and compute.times == 2


async def test_with_keep_a_later_caller_gets_the_first_result():
    flight, compute = SingleFlight(keep=True), Computed()
    compute.gate.set()
    assert [await flight.run("key", compute) for _ in range(3)] == [1, 1, 1] and compute.times == 1


async def test_a_cancelled_caller_leaves_the_computation_to_the_others():
    flight, compute = SingleFlight(), Computed()
    first, second = await asked(flight, compute, 2)
    first.cancel()
    compute.gate.set()
    assert await second == 1 and first.cancelled()


async def test_cancel_stops_what_is_under_way():
    flight, compute = SingleFlight(), Computed()
    (task,) = await asked(flight, compute, 1)
    await flight.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

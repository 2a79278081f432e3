"""The thread that merges searches."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.core.errors import RetrieverFault
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit
from dragoman.retrieval.worker import SearchWorker


class Search:
    """A blocking search that can be held up, and breaks on the query "poison"."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, queries: list[str], depth: int) -> list[list[Hit]]:
        self.entered.set()
        assert self.open.wait(timeout=30)
        self.batches.append((queries, depth))
        if "poison" in queries:
            raise ValueError("cannot search for poison\n  at line 7")
        return [[Hit(Passage(query, "", query), 1.0)] * depth for query in queries]


async def started(
    worker: SearchWorker, search: Search, *searches: tuple[list[str], int]
) -> list[asyncio.Task[list[list[Hit]]]]:
    """Searches that all wait behind the first, which has begun."""
    tasks = []
    for queries, depth in searches:
        tasks.append(asyncio.create_task(worker.search(queries, depth)))
        await asyncio.sleep(0)
        await asyncio.to_thread(search.entered.wait, 30)
    return tasks


async def test_what_waits_is_searched_together() -> None:
    search = Search()
    worker = SearchWorker(search, "test")
    tasks = await started(worker, search, (["first"], 1), (["a", "b"], 1), (["deep"], 2), (["b", "", "c"], 1))
    search.open.set()
    _, ab, deep, bc = await asyncio.gather(*tasks)
    assert [[hit.passage.id for hit in hits] for hits in ab] == [["a"], ["b"]]
    assert [[hit.passage.id for hit in hits] for hits in bc] == [["b"], [], ["c"]]
    assert len(deep[0]) == 2
    assert search.batches == [(["first"], 1), (["a", "b", "c"], 1), (["deep"], 2)]
    worker.close()


async def test_a_query_that_breaks_fails_alone() -> None:
    search = Search()
    worker = SearchWorker(search, "the index")
    tasks = await started(worker, search, (["first"], 1), (["good"], 1), (["poison"], 1), (["fine"], 1))
    search.open.set()
    _, good, poison, fine = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(poison, RetrieverFault)
    assert str(poison) == "the index: cannot search for poison"
    assert isinstance(poison.__cause__, ValueError)
    assert isinstance(good, list)
    assert isinstance(fine, list)
    worker.close()


async def test_a_cancelled_search_is_not_run() -> None:
    search = Search()
    worker = SearchWorker(search, "test")
    first, cancelled, other = await started(worker, search, (["first"], 1), (["cancelled"], 1), (["other"], 1))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    search.open.set()
    await asyncio.gather(first, other)
    assert search.batches == [(["first"], 1), (["other"], 1)]
    worker.close()


async def test_blank_queries_cost_nothing() -> None:
    search = Search()
    worker = SearchWorker(search, "test")
    assert await worker.search(["", "  "], 3) == [[], []]
    assert await worker.search([], 3) == []
    assert search.batches == []
    worker.close()


def test_serves_one_event_loop_after_another() -> None:
    search = Search()
    search.open.set()
    worker = SearchWorker(search, "test")
    for n in range(3):
        [[hit]] = asyncio.run(worker.search([f"query {n}"], 1))
        assert hit.passage.id == f"query {n}"
    ended = []
    worker.close(last=lambda: ended.append(threading.current_thread().name))
    assert ended[0].startswith("dragoman-search")

"""The cache: what is remembered, what is not, and how often the retriever inside is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.core.errors import RetrieverFault
from dragoman.retrieval.cache import CachedRetriever

Listed = Callable[..., Any]


async def test_asks_once_for_each_query_depth_and_page(listed: Listed) -> None:
    inner = listed("abcdef")
    cached = CachedRetriever(inner)
    first = await cached.search(["x", "y", "x"], 2)
    assert [[hit.passage.id for hit in hits] for hits in first] == [["a", "b"]] * 3
    assert await cached.search(["y"], 2) == first[1:2]
    assert (cached.hits, cached.misses) == (2, 2)
    await cached.search(["x"], 2, page=1)
    await cached.search(["x"], 3)
    assert inner.searched == ["x", "y", "x", "x"]
    assert (cached.hits, cached.misses) == (2, 4)


async def test_equal_searches_at_once_are_one_search(listed: Listed) -> None:
    inner = listed("abc", delay=0.05)
    cached = CachedRetriever(inner)
    results = await asyncio.gather(*(cached.search(["x", f"own {n}"], 2) for n in range(20)))
    assert inner.searched.count("x") == 1
    assert len(inner.searched) == 21
    assert all(result == results[0] for result in results)
    assert (cached.hits, cached.misses) == (19, 21)


async def test_the_first_caller_may_be_cancelled(listed: Listed) -> None:
    inner = listed("abc", delay=0.2)
    cached = CachedRetriever(inner)
    first = asyncio.create_task(cached.search(["x"], 1))
    await asyncio.sleep(0)
    second = asyncio.create_task(cached.search(["x"], 1))
    await asyncio.sleep(0)
    first.cancel()
    [hits] = await second
    assert hits[0].passage.id == "a"
    assert first.cancelled()
    assert inner.searched == ["x"]


async def test_a_failure_is_shared_but_not_remembered(listed: Listed) -> None:
    inner = listed("abc", delay=0.02)
    inner.failure = RetrieverFault("down")
    cached = CachedRetriever(inner)
    outcomes = await asyncio.gather(*(cached.search(["x"], 1) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, RetrieverFault) for outcome in outcomes)
    inner.failure = None
    [hits] = await cached.search(["x"], 1)
    assert hits[0].passage.id == "a"
    assert inner.searched == ["x", "x"]


async def test_memory_is_bounded(listed: Listed) -> None:
    inner = listed("a")
    cached = CachedRetriever(inner, memory=2)
    for query in ["x", "y", "x", "z", "x", "y"]:  # z drives out y, the least recently used
        await cached.search([query], 1)
    assert inner.searched == ["x", "y", "z", "y"]
    results = await cached.search(["p", "q", "r", "s"], 1)
    assert all(hits[0].passage.id == "a" for hits in results)


async def test_a_result_that_is_too_old_is_searched_for_anew_and_takes_the_room_of_one(listed: Listed) -> None:
    inner = listed("abc")
    cached = CachedRetriever(inner, characters=17, max_age_s=0.05)
    for _ in range(2):
        await cached.search(["x"], 1)
    assert (inner.searched, cached.hits) == (["x"], 1)
    await asyncio.sleep(0.1)
    for _ in range(2):
        await cached.search(["x"], 1)
    assert (inner.searched, cached.hits, cached.misses) == (["x", "x"], 2, 2)


async def test_memory_is_bounded_in_characters_too(listed: Listed) -> None:
    inner = listed("abc")  # each with 7 of its title and 10 of its text
    cached = CachedRetriever(inner, characters=2 * 17)
    for query in ["x", "y", "x", "z", "x", "y"]:  # z drives out y, the least recently used
        await cached.search([query], 1)
    assert inner.searched == ["x", "y", "z", "y"]
    for _ in range(2):  # more than the bound by itself: not remembered
        [hits] = await cached.search(["w"], 3)
        assert [hit.passage.id for hit in hits] == ["a", "b", "c"]
    assert inner.searched[4:] == ["w", "w"]

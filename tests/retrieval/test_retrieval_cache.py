"""The cache: what is remembered, what is not, and how often the retriever inside is asked."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import RetrieverFault, UserError
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


async def test_disk_outlives_the_process_and_keeps_indexes_apart(listed: Listed, tmp_path: Path) -> None:
    inner = listed("ab\u00e9", "one")
    cached = CachedRetriever(inner, tmp_path / "cache")
    first = await cached.search(["x", "東京", "half \ud83d"], 3)
    await cached.close()
    assert inner.closed

    again = listed("ab\u00e9", "one")
    reopened = CachedRetriever(again, tmp_path / "cache")
    assert await reopened.search(["x", "東京", "half \ud83d"], 3) == first
    assert again.searched == []
    assert (reopened.hits, reopened.misses) == (3, 0)
    await reopened.close()

    other = listed("xyz", "two")
    elsewhere = CachedRetriever(other, tmp_path / "cache")
    [hits] = await elsewhere.search(["x"], 1)
    assert hits[0].passage.id == "x"
    await elsewhere.close()


async def test_memory_is_bounded(listed: Listed) -> None:
    inner = listed("a")
    cached = CachedRetriever(inner, memory=2)
    for query in ["x", "y", "x", "z", "x", "y"]:  # z drives out y, the least recently used
        await cached.search([query], 1)
    assert inner.searched == ["x", "y", "z", "y"]
    results = await cached.search(["p", "q", "r", "s"], 1)
    assert all(hits[0].passage.id == "a" for hits in results)


WRITER = """
import asyncio, sys
from dragoman.retrieval.base import Hit
from dragoman.retrieval.cache import CachedRetriever
from dragoman.core.types import Passage

class One:
    fingerprint = "shared"
    async def search(self, queries, k, page=0):
        return [[Hit(Passage(q, "", q), 1.0)] for q in queries]
    async def close(self):
        pass

async def run():
    cached = CachedRetriever(One(), sys.argv[1])
    for n in range(200):
        [[hit]] = await cached.search([f"{sys.argv[2]} {n}" if n % 2 else f"common {n}"], 1)
        assert hit.passage.id.endswith(str(n))
    await cached.close()

asyncio.run(run())
"""


async def test_several_processes_share_the_disk(listed: Listed, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], stderr=subprocess.PIPE, text=True)
        for name in ("one", "two", "three")
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
        assert said == ""
    reader = CachedRetriever(listed("abc", "shared"), tmp_path)
    queries = [f"{name} {n}" if n % 2 else f"common {n}" for name in ("one", "two", "three") for n in range(200)]
    found = await reader.search(queries, 1)
    assert [hits[0].passage.id for hits in found] == queries
    assert reader.misses == 0
    await reader.close()


async def test_a_disk_that_fails_does_not_stop_the_search(
    listed: Listed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = listed("abc")
    cached = CachedRetriever(inner, tmp_path)
    await cached.search(["x"], 1)
    [path] = tmp_path.glob("*.sqlite")
    with sqlite3.connect(path) as another:
        another.execute("DROP TABLE searches")
    another.close()
    [hits] = await cached.search(["y"], 1)
    assert hits[0].passage.id == "a"
    assert "cannot be read" in caplog.text
    assert "cannot be written" in caplog.text
    await cached.close()


def test_refuses_a_file_that_is_no_cache(listed: Listed, tmp_path: Path) -> None:
    asyncio.run(CachedRetriever(listed("a"), tmp_path).close())
    [path] = tmp_path.glob("*.sqlite")
    path.write_bytes(b"this is not a database, and is long enough for nobody to think so" * 20)
    with pytest.raises(UserError, match=r"not a search cache .*delete it"):
        CachedRetriever(listed("a"), tmp_path)

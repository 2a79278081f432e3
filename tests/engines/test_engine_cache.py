"""The frozen model answers once: what is kept on disk, for how long, and what becomes of a broken file."""

import asyncio
import json
import logging
import math
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedEngine

from dragoman.core.errors import EngineFault
from dragoman.engines.base import Completion, Constraint, Request, Result
from dragoman.engines.cache import AnswerCache, CachedEngine
from dragoman.engines.coalesce import CoalescingEngine

ASKED = Request((("system", "Be brief."), ("user", "Où? 東京 \ud800")), max_tokens=8, stop=("\n",))
MIB = 1 << 20


class Model(ScriptedEngine):
    """Tells how often it was asked; with another `weights`, it is another model."""

    def __init__(self, weights: str = "one") -> None:
        super().__init__(lambda prompt, rng: f"{weights} {rng.random()}")
        self.fingerprint = weights


@pytest.fixture
def cache(tmp_path):
    opened = AnswerCache(tmp_path / "llm", 1)
    yield opened
    opened.close()


async def ask(cache: AnswerCache, request: Request = ASKED, model: Model | None = None) -> Result:
    (result,) = await CachedEngine(model or Model(), cache).generate([request])
    return result


async def test_a_hit_in_a_later_run_is_the_same_result_and_says_so(tmp_path):
    first, second = AnswerCache(tmp_path, 1), Model()
    computed = await ask(first)
    first.close()
    again = AnswerCache(tmp_path, 1)
    known = await ask(again, model=second)
    assert known == computed and (computed.cached, known.cached) == (False, True)
    assert not second.requests


async def test_each_number_of_a_result_survives_exactly(cache):
    result = Result((1, 2), (Completion("é\ud800", (7,), (math.log(1 / 3),), "length"),), 2, 1, 1, "m")
    cache.put("key", result)
    assert cache.get("key") == result


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": (("system", "Be brief."), ("user", "Où?"))},
        {"max_tokens": 9},
        {"stop": ()},
        {"n": 2},
        {"grammar": Constraint(regex="a|b")},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_another_request_is_a_miss(cache, change):
    model = Model()
    await ask(cache, model=model)
    assert not (await ask(cache, replace(ASKED, **change), model)).cached
    assert len(model.requests) == 2


async def test_another_fingerprint_is_a_miss(cache):
    await ask(cache)
    result = await ask(cache, model=Model("other"))
    assert not result.cached and result.completions[0].text.startswith("other")


async def test_the_seed_of_a_greedy_request_does_not_matter(cache):
    await ask(cache)
    assert (await ask(cache, replace(ASKED, seed=3))).cached


async def test_what_samples_goes_through_and_is_not_kept(cache):
    model, sampled = Model(), replace(ASKED, temperature=1.0)
    assert not (await ask(cache, sampled, model)).cached and not (await ask(cache, sampled, model)).cached
    assert len(model.requests) == 2 and not (await ask(cache)).cached


async def test_a_fault_is_raised_and_not_kept(cache):
    with pytest.raises(EngineFault):
        await ask(cache, model=ScriptedEngine(lambda prompt, rng: EngineFault("no")))
    assert not (await ask(cache, model=Model())).cached


async def test_results_keep_the_order_of_hits_misses_and_samples(cache):
    def numbered(i: int, temperature: float = 0.0) -> Request:
        return Request((("user", str(i)),), max_tokens=8, temperature=temperature)

    engine = CachedEngine(ScriptedEngine(lambda prompt, rng: prompt.strip()), cache)
    await engine.generate([numbered(1), numbered(3)])
    results = await engine.generate([numbered(0), numbered(1), numbered(2, 1.0), numbered(3)])
    assert [result.completions[0].text for result in results] == ["0", "1", "2", "3"]
    assert [result.cached for result in results] == [False, True, False, True]


async def test_equal_requests_at_once_are_one_call(cache):
    model = Model()
    engine = CachedEngine(CoalescingEngine(model), cache)
    results = await asyncio.gather(*(engine.generate([ASKED, replace(ASKED, seed=0)]) for _ in range(4)))
    assert len(model.requests) == 1
    assert {result.completions for both in results for result in both} == {results[0][0].completions}


def write(folder: Path, worker: int, n: int = 150) -> None:
    cache = AnswerCache(folder, 64)
    for i in range(n):
        name = f"{worker if i % 2 else 'both'}/{i}"
        cache.put(name, Result((i,), (Completion(name * 50, (i,), (-0.5,), "stop"),), 1, 1))
    cache.close()


def test_two_processes_that_write_at_once_keep_all_that_both_wrote(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(tmp_path, worker)) for worker in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    cache = AnswerCache(tmp_path, 64)
    for i in range(150):
        for name in (f"1/{i}", f"2/{i}") if i % 2 else (f"both/{i}",):
            found = cache.get(name)
            assert found and (found.prompt_ids, found.completions[0].text) == ((i,), name * 50)
    assert list(tmp_path.glob("*.broken")) == []


def test_a_process_that_is_killed_as_it_writes_leaves_what_it_had_kept(tmp_path, caplog):
    worker = multiprocessing.get_context("spawn").Process(target=write, args=(tmp_path, 1, 1_000_000))
    worker.start()
    cache = AnswerCache(tmp_path, 64)
    while not cache.get("1/99"):
        assert worker.is_alive()
    worker.kill()
    worker.join(60)
    again = AnswerCache(tmp_path, 64)
    assert all(again.get(f"1/{i}") for i in range(1, 99, 2)) and caplog.text == ""
    again.put("key", Result((), (), 0, 0))
    assert cache.get("key")


def filled(folder: Path) -> Path:
    cache = AnswerCache(folder, 64)
    for i in range(200):
        cache.put(str(i), Result((i,), (Completion("x" * 2000, (), (), "stop"),), 1, 1))
    cache.close()
    return cache.path


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 100)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        file.write(b"\xff" * (path.stat().st_size // 3))


@pytest.mark.parametrize(
    "damage", [cut, overwrite, lambda path: path.write_text("no database " * 500)], ids=["cut", "overwritten", "text"]
)
async def test_a_damaged_file_is_set_aside_with_a_warning_and_started_anew(damage, tmp_path, caplog):
    path = filled(tmp_path)
    damage(path)
    cache = AnswerCache(tmp_path, 64)
    assert f"{path}: " in caplog.text and "it is set aside as answers.sqlite.broken" in caplog.text
    assert (tmp_path / "answers.sqlite.broken").is_file() and cache.get("3") is None
    assert not (await ask(cache)).cached and (await ask(cache)).cached
    cache.close()
    caplog.clear()
    assert AnswerCache(tmp_path, 64).get("3") is None and caplog.text == ""


async def test_a_file_that_is_damaged_while_in_use_is_used_no_more_and_gives_no_wrong_answer(tmp_path, caplog):
    path = filled(tmp_path)
    cache = AnswerCache(tmp_path, 64)
    assert cache.get("3")
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert cache.get("4") is None and cache.get("5") is None
    assert "neither taken from it nor kept in it any more" in caplog.text
    assert not (await ask(cache)).cached


@pytest.mark.parametrize("value", [b"", b"x" * 40, "text", 7, None])
async def test_a_value_that_is_not_what_was_kept_is_a_miss_and_replaced(value, cache):
    computed = await ask(cache)
    with sqlite3.connect(cache.path) as other:
        other.execute("UPDATE answers SET value = ?", (value,))
    assert not (await ask(cache)).cached
    again = await ask(cache)
    assert again == computed and again.cached


async def test_a_value_under_the_key_of_another_is_a_miss(cache):
    await ask(cache)
    await ask(cache, replace(ASKED, stop=()))
    with sqlite3.connect(cache.path) as other:
        other.execute("UPDATE answers SET value = (SELECT value FROM answers LIMIT 1)")
    assert [(await ask(cache, request)).cached for request in (ASKED, replace(ASKED, stop=()))] == [True, False]


async def test_a_value_of_another_version_is_a_miss(cache, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda value, dumps=json.dumps: dumps({"old": 1} if "model" in value else value))
    await ask(cache)
    monkeypatch.undo()
    assert not (await ask(cache)).cached


def test_the_file_stays_within_its_bound_and_the_oldest_go_first(tmp_path):
    cache = AnswerCache(tmp_path, 1)
    for i in range(600):
        cache.put(str(i), Result((i,), (Completion("x" * 5000, (), (), "stop"),), 1, 1))
        assert cache.path.stat().st_size <= MIB
    kept = [i for i in range(600) if cache.get(str(i))]
    assert kept == list(range(600 - len(kept), 600)) and len(kept) > 120


def test_a_smaller_bound_shrinks_a_file_that_is_there(tmp_path):
    path = filled(tmp_path)
    before, cache = path.stat().st_size, AnswerCache(tmp_path, 1)
    cache._most = before // 4
    for i in range(20):
        cache.put(f"new {i}", Result((), (), 0, 0))
    assert path.stat().st_size <= before // 4
    assert cache.get("new 19")


@pytest.mark.parametrize("where", ["a file in the way", "a folder in its place"])
async def test_where_nothing_can_be_kept_a_warning_says_so_and_nothing_else_changes(where, tmp_path, caplog):
    folder = tmp_path / "llm"
    if where == "a file in the way":
        folder.write_text("")
    else:
        (folder / "answers.sqlite").mkdir(parents=True)
    cache = AnswerCache(folder, 1)
    assert "answers are not kept" in caplog.text
    assert not (await ask(cache)).cached and not (await ask(cache)).cached
    cache.close()


async def test_while_another_process_holds_the_file_requests_are_computed(cache, caplog, monkeypatch):
    monkeypatch.setattr("dragoman.engines.cache.WAIT_S", 0.01)
    impatient = AnswerCache(cache.path.parent, 1)
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        assert not (await ask(impatient)).cached
    assert caplog.text == ""
    other.execute("ROLLBACK")
    other.close()
    assert not (await ask(impatient)).cached and (await ask(impatient)).cached
    impatient.close()

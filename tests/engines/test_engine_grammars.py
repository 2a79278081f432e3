"""What compiled grammars may cost: in memory, in the event loop and in the thread of an engine."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from dragoman.core.errors import EngineFault, PromptTooLong
from dragoman.engines import grammars
from dragoman.engines.base import Constraint, Request
from dragoman.engines.grammars import MOST_GRAMMAR_BYTES, MOST_GRAMMAR_CHARS
from dragoman.engines.local import Vocabulary
from dragoman.engines.transformers import TransformersEngine
from dragoman.engines.turns import TURNS
from dragoman.systems.grammar import Span

AWAKE_S = 5.0
"""Within which an endpoint has to say that it lives, as in the drill `questions`."""


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(tiny_model, dtype="float32", threads=1)
    yield engine
    await engine.close()


@pytest.fixture
def compiled_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have compiled a grammar."""
    from xgrammar import GrammarCompiler

    names: list[str] = []
    original = GrammarCompiler.compile_regex

    def compile(self: GrammarCompiler, regex: str) -> Any:
        names.append(threading.current_thread().name)
        return original(self, regex)

    monkeypatch.setattr(GrammarCompiler, "compile_regex", compile)
    return names


def letters(n: int) -> Constraint:
    return Constraint(regex=f"(a|b){{{n}}}")


async def test_a_grammar_that_takes_seconds_to_compile_does_not_hold_up_the_event_loop(
    engine: TransformersEngine, compiled_in: list[str]
) -> None:
    request = Request(prompt=(1,), max_tokens=2, grammar=Constraint(regex="only in this test"))
    await engine.generate([request, request])
    assert len(compiled_in) == 1 and compiled_in[0] != threading.main_thread().name


async def test_a_grammar_that_is_not_kept_is_not_compiled_again_by_the_thread_of_the_engine(
    engine: TransformersEngine, compiled_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "MOST_GRAMMAR_BYTES", 1)
    asked = [Request(prompt=(1,), max_tokens=n + 1, n=2, temperature=1.0, grammar=letters(n)) for n in (1, 2, 3)]
    with TURNS:  # so that all are there before the first is done
        answers = [asyncio.create_task(engine.generate([request])) for request in asked]
        await asyncio.sleep(0.3)
    for n, ((result,)) in enumerate(await asyncio.gather(*answers), start=1):
        assert {len(completion.text) for completion in result.completions} == {n}
    assert len(compiled_in) == 3 and engine._thread.name not in compiled_in
    assert engine._vocabulary.grammars.size == 0


def test_memory_for_compiled_grammars_is_bounded_and_the_last_used_stay(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = Vocabulary(tiny, None)
    vocabulary.matcher(letters(1))
    size = vocabulary.grammars.size
    monkeypatch.setattr(grammars, "MOST_GRAMMAR_BYTES", 8 * size)
    for n in range(2, 30):
        vocabulary.matcher(letters(n))
        vocabulary.matcher(letters(1))
    assert 0 < vocabulary.grammars.size <= 8 * size
    assert letters(1) in vocabulary.grammars._kept and letters(2) not in vocabulary.grammars._kept


async def test_grammars_of_running_jobs_count_and_the_next_one_waits_for_their_memory(
    tiny_model: Path, compiled_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Vocabulary(tiny_model, None).grammars
    first, second, third, gone = jobs = [Future[Any]() for _ in range(4)]
    await own.lend(letters(20), first)
    monkeypatch.setattr(grammars, "MOST_GRAMMAR_BYTES", own.size * 3 // 2)
    await own.lend(letters(21), second)  # one more than fits, as its size was not known
    held = own.size
    waiting = [asyncio.create_task(own.lend(letters(20 + n), job)) for n, job in ((2, third), (3, gone))]
    await asyncio.sleep(0.2)
    assert len(compiled_in) == 2 and not any(task.done() for task in waiting)
    await own.lend(letters(20), again := Future[Any]())  # what is there need not be compiled
    gone.cancel()
    first.set_result(None)
    await asyncio.sleep(0.2)
    assert len(compiled_in) == 2, "the first grammar is still held by another job"
    again.set_result(None)
    await waiting[0]
    assert len(compiled_in) == 3 and own.size <= held * 5 // 4
    with pytest.raises(EngineFault, match="given up"):
        await waiting[1]
    for job in jobs:
        job.cancel()


async def test_a_grammar_that_is_too_large_is_refused_before_it_is_compiled(
    engine: TransformersEngine, compiled_in: list[str]
) -> None:
    words = " ".join(f"{number:06}" for number in range(4000))
    large = Constraint(regex=Span(sources=((words, 1, 6),)).strict)
    request = Request(prompt=(1,), max_tokens=2, grammar=large)
    with pytest.raises(PromptTooLong, match=rf"grammar of {len(large.regex or '')} .* {MOST_GRAMMAR_CHARS} .*shorter"):
        await engine.generate([request])
    assert compiled_in == []
    with pytest.raises(EngineFault) as fault:
        await engine.generate([Request(prompt=(1,), max_tokens=2, grammar=Constraint(regex="(" * 10_000))])
    assert len(str(fault.value)) < 1000


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_twenty_long_questions_with_the_real_vocabulary_take_bounded_memory_and_leave_the_loop_free(
    tiny: Path,
) -> None:
    """Each question of 2,000 characters has words of one letter, which makes the largest grammars: 35 MiB each, and 700 together."""
    draw = random.Random(0)
    asked = []
    for _ in range(20):
        question = " ".join(draw.choices("abcdefghij", k=1000))
        grammar = Constraint(regex=Span(sources=((question, 1, 6),)).strict)
        asked.append(Request(prompt=(1, 2, 3), max_tokens=16, temperature=1.0, grammar=grammar))
    engine = TransformersEngine(tiny, dtype="float32", threads=1)
    await engine.generate([Request(prompt=(1, 2, 3), max_tokens=2, grammar=letters(1))])
    process, over = psutil.Process(), asyncio.Event()
    before = process.memory_info().rss

    async def watch() -> tuple[float, int]:
        slowest, most = 0.0, 0
        while not over.is_set():
            started = time.monotonic()
            await asyncio.sleep(0.01)
            slowest = max(slowest, time.monotonic() - started)
            most = max(most, process.memory_info().rss)
        return slowest, most

    watching = asyncio.create_task(watch())
    with TURNS:  # the engine waits for others
        answers = [asyncio.create_task(engine.generate([request])) for request in asked]
        kept = engine._vocabulary.grammars
        while kept.size < MOST_GRAMMAR_BYTES:
            await asyncio.sleep(0.5)
        came = -1
        while came != (came := engine._inbox.qsize()):  # until no more come, as the memory is full
            await asyncio.sleep(5)
    results = await asyncio.gather(*answers)
    over.set()
    slowest, most = await watching
    await engine.close()
    assert all(set(result.completions[0].text) <= set("abcdefghij ") for (result,) in results)
    grown = most - before
    assert grown < 2 * MOST_GRAMMAR_BYTES, f"memory grew by {grown >> 20} MiB"
    assert slowest < AWAKE_S, f"the event loop was held up for {slowest:.1f} s"

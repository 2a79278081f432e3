from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dragoman.core.errors import EngineFault, UserError
from dragoman.engines.base import Constraint, Request
from dragoman.engines.local import Job, Vocabulary
from dragoman.engines.sampling import Row
from dragoman.engines.transformers import TransformersEngine

SAMPLE = Request(prompt=(("user", "Name a colour."),), max_tokens=10, temperature=1.0)


async def test_a_result_does_not_depend_on_the_batch(transformers_engine: TransformersEngine) -> None:
    requests = [
        replace(
            SAMPLE,
            prompt=(("user", "word " * (i * 5)),),
            max_tokens=4 + i,
            temperature=0.5 * (i % 3),
            n=1 + i % 2,
            seed=i,
            grammar=Constraint(regex="[a-z ]{1,40}") if i % 4 == 0 else None,
        )
        for i in range(12)
    ]
    together = await transformers_engine.generate(requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = await transformers_engine.generate([request])
        assert [c.token_ids for c in alone.completions] == [c.token_ids for c in result.completions]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
async def test_samples_follow_the_distribution(transformers_engine: TransformersEngine, temperature: float) -> None:
    """Frequencies of the allowed tokens are the probabilities that are reported with them, which add up to 1."""
    n, letters = 600, "abcdefgh"
    request = replace(SAMPLE, n=n, temperature=temperature, max_tokens=2, grammar=Constraint(regex=f"[{letters}]"))
    (result,) = await transformers_engine.generate([request])
    counts = Counter(c.text for c in result.completions)
    assert set(counts) <= set(letters)
    reported = {c.text: math.exp(c.logprobs[0]) for c in result.completions}
    assert sum(reported.values()) == pytest.approx(1.0, abs=0.02)  # without those that 600 draws did not meet
    for letter, p in reported.items():
        assert abs(counts[letter] - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1


async def test_rows_split_over_batches_come_back_in_order(tiny: Path) -> None:
    engine = TransformersEngine(tiny, dtype="float32", max_batch=3, max_batch_tokens=200, threads=1)
    try:
        (split,) = await engine.generate([replace(SAMPLE, n=8)])
        wide = TransformersEngine(tiny, dtype="float32", threads=1)
        (whole,) = await wide.generate([replace(SAMPLE, n=8)])
        await wide.close()
    finally:
        await engine.close()
    assert [c.token_ids for c in split.completions] == [c.token_ids for c in whole.completions]


async def test_a_failing_row_fails_its_own_askedalone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine(tiny, dtype="float32", threads=1)
    decode = engine._decode
    sizes: list[int] = []
    busy, all_wait = threading.Event(), threading.Event()

    def broken(rows: Sequence) -> None:
        busy.set()
        all_wait.wait(60)  # what is asked first keeps the engine busy until the others are there
        sizes.append(len(rows))
        if any(row.job.request.seed == 3 for row in rows):
            raise MemoryError("out of memory")
        decode(rows)

    monkeypatch.setattr(engine, "_decode", broken)
    try:
        first = asyncio.create_task(engine.generate([replace(SAMPLE, seed=9)]))
        await asyncio.to_thread(busy.wait, 60)
        others = [asyncio.create_task(engine.generate([replace(SAMPLE, seed=seed)])) for seed in range(6)]
        while engine._inbox.qsize() < len(others):
            await asyncio.sleep(0.01)
        all_wait.set()
        await first
        results = await asyncio.gather(*others, return_exceptions=True)
        assert [isinstance(r, EngineFault) for r in results] == [False, False, False, True, False, False]
        assert "out of memory" in str(results[3])
        assert sizes[:2] == [1, 6], "concurrent calls share a batch"
        assert sizes[2:] == [1] * 6, "and are tried alone once"
        (fine,) = await engine.generate([SAMPLE])
        assert fine == results[0][0]
    finally:
        await engine.close()


@pytest.mark.parametrize(
    "asked",
    [
        Request(prompt=(("user", "Next:\n"),), max_tokens=1, options=("search", "answer")),
        replace(SAMPLE, temperature=0.0),
        SAMPLE,
    ],
)
async def test_logits_that_are_no_numbers_fail_their_request(asked: Request, tiny: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(tiny, tmp_path / "broken") / "model.safetensors"
    save_file({name: weights * float("nan") for name, weights in load_file(broken).items()}, broken, {"format": "pt"})
    engine = TransformersEngine(broken.parent, dtype="float32", threads=1)
    try:
        with pytest.raises(EngineFault, match=r"broken .*logits that are no numbers: .* dtype float16 is too narrow"):
            await engine.generate([asked])
    finally:
        await engine.close()


async def test_a_closed_engine_refuses_and_leaves_nobody_waiting(tiny: Path) -> None:
    engine = TransformersEngine(tiny, dtype="float32", max_batch=1, threads=1)
    waiting = asyncio.ensure_future(engine.generate([replace(SAMPLE, n=50, max_tokens=300)]))
    await asyncio.sleep(0.05)
    await engine.close()
    with pytest.raises(EngineFault, match="closed"):
        await waiting
    with pytest.raises(EngineFault, match="closed"):
        await engine.generate([SAMPLE])
    await engine.close()  # twice does no harm


async def test_an_engine_that_breaks_down_fails_its_callers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine(tiny, dtype="float32", threads=1)
    monkeypatch.setattr(engine, "_next_batch", lambda waiting: 1 / 0)
    with pytest.raises(EngineFault, match="ZeroDivisionError"):
        await engine.generate([SAMPLE])
    with pytest.raises(EngineFault, match="ZeroDivisionError"):
        await engine.generate([SAMPLE])
    await engine.close()


@pytest.mark.process
def test_a_program_that_ends_in_the_middle_of_a_batch_ends_cleanly(tiny: Path) -> None:
    program = """
import asyncio, sys
from dragoman.engines.base import Request
from dragoman.engines.transformers import TransformersEngine

async def main():
    engine = TransformersEngine(sys.argv[1], dtype="float32", threads=1)
    asyncio.ensure_future(engine.generate([Request((5, 6, 7), 500, n=16, temperature=1.0)]))
    await asyncio.sleep(0.3)
    sys.exit(7)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program, str(tiny)], capture_output=True, text=True, check=False)
    assert ended.returncode == 7, ended.stderr
    assert "terminate called" not in ended.stderr


@pytest.mark.parametrize("change", [{"n": 0}, {"max_tokens": 0}, {"temperature": -1.0}, {"prompt": ()}])
async def test_nonsense_is_refused(transformers_engine: TransformersEngine, change: dict[str, object]) -> None:
    with pytest.raises(EngineFault):
        await transformers_engine.generate([replace(SAMPLE, **change)])


def test_bad_settings_are_the_users(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="float64"):
        TransformersEngine(tiny, dtype="float64")
    with pytest.raises(UserError, match="context of 512"):
        TransformersEngine(tiny, max_model_len=1024)
    with pytest.raises(UserError, match="dragoman model"):
        TransformersEngine(tmp_path)


async def test_the_built_in_model_knows_paris(smollm2: Path) -> None:
    engine = TransformersEngine(smollm2, max_model_len=512)
    try:
        (result,) = await engine.generate(
            [Request(prompt=(("user", "What is the capital of France?"),), max_tokens=24)]
        )
    finally:
        await engine.close()
    assert "Paris" in result.completions[0].text
    assert result.completions[0].finish_reason == "stop"


@pytest.mark.parametrize(("special", "text"), [(False, "A"), (True, "<|im_start|>A<|endoftext|>")])
def test_special_tokens_but_the_end_stay_in_a_text_that_is_to_have_them(
    tiny_model: Path, special: bool, text: str
) -> None:
    vocabulary = Vocabulary(tiny_model, None)
    row = Row(Job(replace(SAMPLE, special=special), (5,)), 0, vocabulary)
    nothing, start, end = 0, 1, 2
    for id in (start, *vocabulary.tokenize("A"), nothing, end):
        row.add(id, -0.1, likeliest=())
    assert (row.completion.text, row.completion.finish_reason) == (text, "stop")

from __future__ import annotations

import asyncio
import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.engines.base import Constraint, Engine, Request
from dragoman.engines.transformers import TransformersEngine
from dragoman.engines.vllm import bind_threads

pytestmark = pytest.mark.engine

SAMPLE = Request(prompt=(("user", "Name a colour."),), max_tokens=10, temperature=1.0)


def long_prompt(seed: int, length: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(100, 40_000) for _ in range(length))


async def test_prompts_longer_than_a_step_do_not_stop_it(vllm_engine: Engine) -> None:
    """Seeded requests whose prefill was split took vLLM's CPU backend down."""
    requests = [replace(SAMPLE, prompt=long_prompt(i, 480), seed=i) for i in range(30)]
    results = await asyncio.gather(*(vllm_engine.generate([request]) for request in requests))
    assert [len(r[0].completions[0].token_ids) for r in results] == [10] * 30


async def test_a_repeated_prefix_comes_out_of_the_cache(vllm_engine: Engine) -> None:
    request = replace(SAMPLE, prompt=long_prompt(1000, 400))
    (first,) = await vllm_engine.generate([request])
    (second,) = await vllm_engine.generate([replace(request, seed=1)])
    assert first.cached_tokens == 0
    assert 256 <= second.cached_tokens < 400


async def test_it_is_greedy_as_transformers_is(vllm_engine: Engine, transformers_engine: TransformersEngine) -> None:
    requests = [replace(SAMPLE, temperature=0.0, prompt=long_prompt(i, 40 + i)) for i in range(6)] + [
        replace(SAMPLE, temperature=0.0, grammar=Constraint(regex="(red|green|blue) [a-z]{4,9}"))
    ]
    by_vllm = await vllm_engine.generate(requests)
    by_transformers = await transformers_engine.generate(requests)
    assert [r.prompt_ids for r in by_vllm] == [r.prompt_ids for r in by_transformers]
    assert [r.completions[0].token_ids for r in by_vllm] == [r.completions[0].token_ids for r in by_transformers]
    assert [r.completions[0].text for r in by_vllm] == [r.completions[0].text for r in by_transformers]
    assert vllm_engine.fingerprint == transformers_engine.fingerprint


async def test_two_models_run_side_by_side(vllm_engine: Engine, other_tiny: Path) -> None:
    import torch

    from dragoman.engines.vllm import VllmEngine

    threads = torch.get_num_threads()
    other = VllmEngine(other_tiny, dtype="float32", kv_cache_gib=0.1)
    try:
        requests = [replace(SAMPLE, seed=seed, max_tokens=20) for seed in range(8)]
        mine, theirs = await asyncio.gather(vllm_engine.generate(requests), other.generate(requests))
        assert mine == [(await vllm_engine.generate([r]))[0] for r in requests]
        assert {r.completions[0].token_ids for r in mine}.isdisjoint({r.completions[0].token_ids for r in theirs})
        assert vllm_engine.fingerprint != other.fingerprint
    finally:
        await other.close()
    assert torch.get_num_threads() == threads
    torch.set_num_threads(threads)  # vLLM's ban on it does not outlast the load
    (still,) = await vllm_engine.generate([SAMPLE])
    assert len(still.completions[0].token_ids) == 10


def test_its_cache_is_as_large_as_said_and_no_share_of_a_card_has_to_be_free(vllm_engine: Engine) -> None:
    settings = vllm_engine._engine.vllm_config.cache_config
    assert (settings.kv_cache_memory_bytes, settings.gpu_memory_utilization) == (int(0.1 * 2**30), 0.01)


def test_a_model_that_vllm_cannot_run_is_a_user_error(vllm_engine: Engine, tiny: Path) -> None:
    from dragoman.core.errors import UserError
    from dragoman.engines.vllm import VllmEngine

    with pytest.raises(UserError, match="vllm cannot load"):
        VllmEngine(tiny, dtype="float32", kv_cache_gib=0.1, max_batch=0)


@pytest.mark.parametrize(
    "said",
    [
        "the KV cache (9 GiB) is larger than the memory. Try increasing `gpu_memory_utilization` or decreasing it.",
        "CUDA out of memory. Tried to allocate 16.00 GiB.",
    ],
)
def test_a_model_that_does_not_fit_is_a_user_error_that_names_the_settings(tiny: Path, monkeypatch, said: str) -> None:
    import torch

    from dragoman.core.errors import UserError
    from dragoman.engines.vllm import VllmEngine, import_vllm

    pytest.importorskip("vllm", exc_type=ImportError)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError(said) if "CUDA" in said else ValueError(said)

    monkeypatch.setattr(import_vllm().LLMEngine, "from_engine_args", fail)
    with pytest.raises(UserError, match=r"memory.*; .*max_model_len \(512\).* kv_cache_gib \(0\.1\)") as refused:
        VllmEngine(tiny, dtype="float32", kv_cache_gib=0.1)
    assert "gpu_memory_utilization" not in str(refused.value)


@pytest.mark.skipif("OMP_NUM_THREADS" in os.environ, reason="the number of threads is not that of the cores")
@pytest.mark.parametrize("setting", ["auto", "nobind"])
def test_each_thread_of_a_machine_that_is_used_whole_keeps_a_core(setting, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", setting)
    cores = os.sched_getaffinity(0)
    helpers: list[set[int]] = []

    def engine_thread() -> None:
        before = set(Path("/proc/self/task").iterdir())
        bind_threads()
        helpers.extend(os.sched_getaffinity(int(t.name)) for t in set(Path("/proc/self/task").iterdir()) - before)
        helpers.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=engine_thread)
    thread.start()
    thread.join()
    *bound, own = helpers
    assert own == os.sched_getaffinity(0) == cores  # who asks goes where there is room
    assert all(len(core) == 1 for core in bound)
    assert len(set.union(set(), *bound)) == len(bound) == (len(cores) - 1 if setting == "auto" else 0)

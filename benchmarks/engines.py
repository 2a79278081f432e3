"""vLLM against transformers on the same requests in one run: prompts of 330 tokens, 64 new ones, temperature 1.

Prompts are random tokens, new ones in each repeat, so that no prefix cache can help; with `--n 2` the completions of one
request share theirs. Both models are loaded before the first repeat and warmed up on requests that are not counted.

    python -m benchmarks.engines --model data/model --requests 32 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.ratios import Sample, ratio
from dragoman.engines import EnginePool, open_engine
from dragoman.engines.base import Engine, Request
from dragoman.engines.settings import EngineParams

PROMPT, NEW = 330, 64
CONTEXT = 4096


def requests(count: int, n: int, seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            prompt=tuple(draw.randrange(100, 40_000) for _ in range(PROMPT)),
            max_tokens=NEW,
            n=n,
            temperature=1.0,
            seed=draw.randrange(2**32),
        )
        for _ in range(count)
    ]


async def run(engine: Engine, batch: Sequence[Request]) -> tuple[float, int]:
    """Seconds, and tokens of prompts and completions, for single calls that are all made at once."""
    started = time.perf_counter()
    results = await asyncio.gather(*(engine.generate([request]) for request in batch))
    seconds = time.perf_counter() - started
    return seconds, sum(result.prompt_tokens + result.completion_tokens for (result,) in results)


async def measure(openers: dict[str, Callable[[], Engine]], count: int, n: int, repeats: int) -> dict[str, Any]:
    engines: dict[str, Engine] = {}
    startup: dict[str, float] = {}
    for name, opener in openers.items():
        started = time.perf_counter()
        engines[name] = opener()
        startup[name] = time.perf_counter() - started
        await run(engines[name], requests(4, n, seed=-1))
    per_token: list[Sample] = []
    for repeat in range(repeats):
        batch = requests(count, n, seed=repeat)
        order = list(engines) if repeat % 2 else list(reversed(engines))
        measured = {}
        for name in order:
            seconds, tokens = await run(engines[name], batch)
            measured[name] = seconds / tokens
        per_token.append(Sample(repeat, measured))
    for engine in engines.values():
        await engine.close()
    first, second = engines
    faster, low, high = ratio(per_token, second, first)
    return {
        "requests": count,
        "n": n,
        "repeats": repeats,
        "startup_seconds": startup,
        "tokens_per_second": {name: repeats / sum(s.seconds[name] for s in per_token) for name in engines},
        "ratio": {"of": f"{first} to {second}", "mean": faster, "low": low, "high": high},
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Print a table and a line of JSON, and return what the line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--n", type=int, default=1, help="completions of each request")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)

    def opener(kind: Any) -> Callable[[], Engine]:
        return lambda: open_engine(
            EngineParams(engine=kind, model=options.model, max_model_len=CONTEXT), pool=EnginePool()
        )

    openers = {"vllm": opener("vllm"), "transformers": opener("transformers")}
    report = asyncio.run(measure(openers, options.requests, options.n, options.repeats))
    print(f"engines, {options.requests} requests, n = {options.n}, {options.repeats} repeats")
    for name, speed in report["tokens_per_second"].items():
        print(f"  {name:24} {speed:8.0f} tokens/s   loaded in {report['startup_seconds'][name]:.0f} s")
    print("  {of:24} {mean:8.2f} x   [{low:.2f}, {high:.2f}]".format(**report["ratio"]))
    print(json.dumps(report))
    return report


if __name__ == "__main__":
    main()

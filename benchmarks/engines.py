"""vLLM against transformers: the same requests, the same weights, in one run.

python -m benchmarks.engines --model data/model
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from benchmarks.ratios import Sample, report
from dragoman.corpus import load_corpus
from dragoman.engines import open_engine
from dragoman.engines.base import Engine, Request

PASSAGES_PER_PROMPT = 5


def requests(corpus: str, n: int, repeat: int, draws: int) -> list[Request]:
    """Prompts of about 400 tokens that differ from repeat to repeat, so that no prefix cache remembers the last one."""
    passages = load_corpus(corpus)
    chosen = []
    for i in range(n):
        start = (repeat * n + i) * PASSAGES_PER_PROMPT % (len(passages) - PASSAGES_PER_PROMPT)
        texts = "\n".join(p.text for p in passages[start : start + PASSAGES_PER_PROMPT])
        prompt = (("user", f"{texts}\n\nWrite a summary of these texts."),)
        chosen.append(Request(prompt, max_tokens=64, n=draws, temperature=1.0, seed=i))
    return chosen


async def measure(engines: dict[str, Engine], corpus: str, n: int, repeats: int, draws: int) -> list[Sample]:
    samples = []
    tokens: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        await engine.generate(requests(corpus, 4, repeats, 1))  # warm up
    for repeat in range(repeats):
        seconds = {}
        batch = requests(corpus, n, repeat, draws)
        for name, engine in engines.items():
            started = time.perf_counter()
            results = await engine.generate(batch)
            seconds[name] = time.perf_counter() - started
            total = sum(r.prompt_tokens + r.completion_tokens for r in results)
            tokens[name].append(total / seconds[name])
        samples.append(Sample(repeat, seconds))
    report(f"{n} requests, n = {draws}, up to 64 new tokens", samples, base="vllm")
    for name, rates in tokens.items():
        print(f"  {name:24} {sum(rates) / len(rates):8.0f} tokens/s, prompt and new")
    return samples


async def run(options: argparse.Namespace) -> None:
    engines: dict[str, Engine] = {}
    for kind in ("vllm", "transformers"):
        started = time.perf_counter()
        engines[kind] = open_engine(kind=kind, model=options.model, max_model_len=4096, max_num_seqs=32)
        print(f"{kind} ready after {time.perf_counter() - started:.0f} s")
    for draws in (1, 2):
        await measure(engines, options.corpus, options.requests, options.repeats, draws)
    for engine in engines.values():
        await engine.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="data/model")
    parser.add_argument("--corpus", default="data/atlas/corpus.jsonl")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    asyncio.run(run(parser.parse_args(argv)))


if __name__ == "__main__":
    main()

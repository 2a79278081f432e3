"""Seconds per question of the trained system against standard RAG, on the same questions in one run.

The paper reports 4.8 s against 3.6 s, a ratio of 1.33 (C-3PO section 6.5).

    python -m benchmarks.inference --system c3po@rl --questions 32 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from benchmarks.ratios import Sample, report
from benchmarks.scheduler import seconds
from dragoman.config import load_params
from dragoman.corpus import load_questions
from dragoman.rollout.exploration import GREEDY
from dragoman.runtime import open_runtime


async def measure(system: str, n: int, repeats: int, concurrency: int) -> list[Sample]:
    params = load_params()
    questions = load_questions("data/atlas/dev.jsonl", limit=n)
    samples = []
    async with open_runtime(params, "data/index/atlas") as runtime:
        opened = {name: runtime.open(name) for name in ("standard", system)}
        for name, (built, backends) in opened.items():  # warm up
            await seconds(questions[:2], built, backends, GREEDY, 2, seed=0, name=name)
        for repeat in range(repeats):
            order = list(opened.items())[:: 1 if repeat % 2 == 0 else -1]
            took = {
                name: await seconds(questions, built, backends, GREEDY, concurrency, seed=0, name=name)
                for name, (built, backends) in order
            }
            samples.append(Sample(repeat, {name: took[name] for name in opened}))
    return samples


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="c3po@rl")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    for concurrency in (1, options.questions):
        samples = asyncio.run(measure(options.system, options.questions, options.repeats, concurrency))
        report(f"{options.questions} questions, {concurrency} at once", samples, base="standard")


if __name__ == "__main__":
    main()

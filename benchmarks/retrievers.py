"""BM25, dense and hybrid retrieval: passages indexed and queries answered per second, on one corpus in one run.

python -m benchmarks.retrievers --corpus data/atlas/corpus.jsonl --questions data/atlas/dev.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ratios import Sample, report
from dragoman.corpus import load_corpus, load_questions
from dragoman.retrieval import IndexParams, build_index, open_retriever


async def answer(folder: Path, queries: list[str]) -> float:
    retriever = open_retriever(folder)
    await retriever.search(queries[:1], 5)  # warm up
    started = time.perf_counter()
    await retriever.search(queries, 5)
    took = time.perf_counter() - started
    await retriever.close()
    return took


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="data/atlas/corpus.jsonl")
    parser.add_argument("--questions", default="data/atlas/dev.jsonl")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    passages = load_corpus(options.corpus)
    queries = [q.question for q in load_questions(options.questions, require_answers=False)]
    indexing: list[Sample] = []
    searching: list[Sample] = []
    methods = ("bm25", "dense", "hybrid")
    for repeat in range(options.repeats):
        built: dict[str, float] = {}
        answered: dict[str, float] = {}
        for method in methods:
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / method
                started = time.perf_counter()
                build_index(passages, folder, IndexParams(method=method))
                built[method] = time.perf_counter() - started
                answered[method] = asyncio.run(answer(folder, queries))
        indexing.append(Sample(repeat, built))
        searching.append(Sample(repeat, answered))
    for title, n, samples in (("indexing", len(passages), indexing), ("searching", len(queries), searching)):
        report(f"{title} {n}", samples, base="bm25")
        for method in methods:
            mean = sum(s.seconds[method] for s in samples) / len(samples)
            print(f"  {method:24} {n / mean:8.0f} per second")


if __name__ == "__main__":
    main()

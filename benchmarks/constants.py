"""What one passage, one search, one question and one episode cost on this machine: the numbers that a plan starts from.

Real parts, at several sizes: an index is built and searched in processes of its own, so that its memory is its own. Where the
corpus is smaller than a size, passages are added whose halves come from two of its own. They keep how often its words occur.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pydantic import BaseModel, ConfigDict, Field

from dragoman.core import files
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus, load_questions
from dragoman.retrieval import build_index, open_retriever
from dragoman.retrieval.lucene import LUCENE

DIMENSIONS = 384  # of the bundled encoder
CODE = 48  # bytes of a compressed vector: a byte for each eight dimensions
VECTORS, LISTS, PROBES = 100_000, 256, (16, 64)
WARM_UP = 8


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Line(Part):
    """A cost that grows with the passages: `at_zero + each * passages`."""

    at_zero: float = Field(ge=0)
    each: float = Field(ge=0)

    def at(self, passages: float) -> float:
        return self.at_zero + self.each * passages


class Asked(Part):
    """What one question costs on the machine that was measured, many under way at once: searches, tokens, seconds."""

    system: str
    searches: float
    calls: float
    llm_tokens: float
    llm_seconds: float
    proxy_tokens: float
    proxy_seconds: float


class Constants(Part):
    """Bytes and seconds. Seconds are of one core, but for `search_p50`, and for those of `asked`, which are of the machine."""

    cores: int
    lucene_bytes: Line
    store_bytes: Line
    build_bytes: Line
    """The most memory of a process that builds an index."""
    build_seconds: Line
    open_bytes: Line
    """The memory of a process that searches it."""
    search_seconds: Line
    search_p50: Line
    vector_seconds: float
    """To compare a query with one whole vector."""
    code_seconds: float
    """To compare it with one compressed vector."""
    embed_seconds: float
    """To embed one passage."""
    query_seconds: float
    """To embed one query."""
    asked: Asked
    episode_bytes: float


def fit(sizes: Sequence[float], values: Sequence[float]) -> Line:
    """The line nearest to what was measured (least squares), with neither part below 0."""
    from scipy.optimize import nnls

    (at_zero, each), _ = nnls(np.column_stack([np.ones(len(sizes)), sizes]), np.asarray(values, dtype=float))
    return Line(at_zero=at_zero, each=each)


def grown(passages: Sequence[Passage], size: int, seed: int = 0) -> Iterator[Passage]:
    """`size` passages: first those of the corpus, then the first half of one with the second half of another."""
    yield from passages[:size]
    draw = random.Random(seed)
    for number in range(len(passages), size):
        first, second = draw.choice(passages), draw.choice(passages)
        head, tail = first.text.split(), second.text.split()
        text = " ".join([*head[: (len(head) + 1) // 2], *tail[len(tail) // 2 :]])
        yield Passage(f"grown-{number}", first.title, text)


def alone(function: Any, *arguments: Any) -> Any:
    """What the function returns in a new process, which has no memory and no Java yet."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(function, *arguments).result()


def build(corpus: str, size: int, folder: Path) -> dict[str, float]:
    """Build an index of so many passages, as the stage `index` does."""
    passages = list(grown(load_corpus(corpus), size))
    started = time.process_time()
    build_index(passages, folder)
    took = time.process_time() - started
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    lucene = sum(file.stat().st_size for file in (folder / LUCENE).iterdir())
    store = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return {"lucene_bytes": lucene, "store_bytes": store, "build_bytes": most, "build_seconds": took}


def search(folder: Path, queries: list[str], k: int) -> dict[str, float]:
    """Search the index, one query at a time, after all of them often enough for Java to have compiled what it runs."""

    async def run() -> dict[str, float]:
        retriever = open_retriever(folder)
        for _ in range(WARM_UP):
            await retriever.search(queries, k)
        waited, started = [], time.process_time()
        for query in queries:
            before = time.perf_counter()
            await retriever.search([query], k)
            waited.append(time.perf_counter() - before)
        seconds = (time.process_time() - started) / len(queries)
        memory = psutil.Process().memory_info().rss
        await retriever.close()
        return {"search_seconds": seconds, "search_p50": float(np.median(waited)), "open_bytes": memory}

    return asyncio.run(run())


def index(corpus: str, questions: str, size: int, k: int = 5) -> dict[str, float]:
    """What it takes to build an index of so many passages, and to search it for questions."""
    queries = [question.question for question in load_questions(questions, require_answers=False)][:100]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "index"
        return {"passages": size} | alone(build, corpus, size, folder) | alone(search, folder, queries, k)


def lines(rows: Sequence[Mapping[str, float]]) -> dict[str, Line]:
    """The line of each cost, from what was measured at several sizes."""
    sizes = [row["passages"] for row in rows]
    return {name: fit(sizes, [row[name] for row in rows]) for name in rows[0] if name != "passages"}


class Kept:
    """What was measured, in a file that is written after each part: a measurement that was cut short goes on."""

    def __init__(self, path: Path, of: str) -> None:
        """`of` names what is measured. What the file has of something else is forgotten."""
        self.path = path
        self.content: dict[str, Any] = {"of": of, "machine": machine(), "measured": {}}
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before.get("of") == of:
                self.content["measured"] = before["measured"]

    def part(self, name: str, function: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
        measured: dict[str, dict[str, float]] = self.content["measured"]
        if name not in measured:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measured[name] = function(*arguments)
            self.write()
        return measured[name]

    def write(self) -> None:
        files.write_text(self.path, json.dumps(self.content, indent=2) + "\n")


def vectors() -> dict[str, float]:
    """Seconds of a core to compare a query with a whole vector, and with a compressed one (FAISS, random vectors)."""
    import faiss

    faiss.omp_set_num_threads(1)
    draw = np.random.default_rng(0)
    held = draw.standard_normal((VECTORS, DIMENSIONS), dtype=np.float32)
    queries = held[:50]

    def seconds(index: Any) -> float:
        index.search(queries[:5], 5)
        started = time.process_time()
        for query in queries:
            index.search(query[None], 5)
        return (time.process_time() - started) / len(queries)

    flat = faiss.IndexFlatIP(DIMENSIONS)
    flat.add(held)
    lists = faiss.IndexIVFPQ(faiss.IndexFlatIP(DIMENSIONS), DIMENSIONS, LISTS, CODE, 8, faiss.METRIC_INNER_PRODUCT)
    lists.cp.niter = lists.pq.cp.niter = 4  # how good the lists are does not matter here
    lists.train(held[: 40 * LISTS])
    lists.add(held)
    took = []
    for lists.nprobe in PROBES:
        took.append(seconds(lists))
    codes = VECTORS * (PROBES[1] - PROBES[0]) / LISTS
    return {"vector_seconds": seconds(flat) / VECTORS, "code_seconds": max(0.0, (took[1] - took[0]) / codes)}


def encoder(corpus: str, questions: str, n: int = 96) -> dict[str, float]:
    """Seconds of a core to embed a passage, and a query by itself."""
    from dragoman.retrieval.methods.dense import BUNDLED_ENCODER, load_encoder
    from dragoman.retrieval.store import indexed_text

    model = load_encoder(BUNDLED_ENCODER, device="cpu")
    texts = [indexed_text(passage) for passage in load_corpus(corpus)[:n]]
    queries = [question.question for question in load_questions(questions, require_answers=False)[:n]]
    model.encode_document(texts[:8], show_progress_bar=False)
    started = time.process_time()
    model.encode_document(texts, batch_size=32, show_progress_bar=False)
    embedded = time.process_time()
    for query in queries:
        model.encode_query([query], show_progress_bar=False)
    ended = time.process_time()
    return {"embed_seconds": (embedded - started) / len(texts), "query_seconds": (ended - embedded) / len(queries)}


def asked(metrics: dict[str, Any], system: str, free: str) -> Asked:
    """What a question costs, from the metrics of an evaluation.

    `free` is the system with decisions that cost nothing, those of an oracle: what it still spends is the LLM's part, and
    what `system` spends above it is the proxy's. Its LLM reads what an oracle has kept, so its part is a little too small.
    """
    whole, llm = metrics["systems"][system], metrics["systems"][free]
    return Asked(
        system=system,
        searches=whole["searches"],
        calls=whole["calls"],
        llm_tokens=llm["tokens"],
        llm_seconds=llm["seconds"],
        proxy_tokens=max(0.0, whole["tokens"] - llm["tokens"]),
        proxy_seconds=max(0.0, whole["seconds"] - llm["seconds"]),
    )


def episode_bytes(path: Path) -> float:
    """The mean length of a line of a file of episodes."""
    return path.stat().st_size / max(1, path.read_bytes().count(b"\n"))


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }

"""What the endpoint costs over calling the system in process, and how many clients it stands, in one run.

Neither measures a model: the LLM and the proxy answer at once (or after `--llm-ms`), so that what is left is the way of a
question through HTTP, queue, retrieval and the system. The endpoint runs in a process of its own, as it does in service.

    python -m benchmarks.serving --requests 200 --repeats 5 --clients 64 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from multiprocessing.synchronize import Event

import httpx
import numpy as np
import uvicorn

from benchmarks.ratios import Sample, report
from dragoman.core.listening import KEEP_ALIVE_S
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Completion, Request, Result
from dragoman.retrieval.base import Hit
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.serving.metrics import Metrics
from dragoman.serving.models import Models, Opened
from dragoman.serving.server import create_app
from dragoman.serving.service import Service
from dragoman.serving.settings import ServeParams
from dragoman.systems import build
from dragoman.systems.system_name import SystemName

SYSTEM = "c3po"


class Instant:
    """A proxy that searches once and keeps the first passage, and an LLM with one answer."""

    fingerprint = "instant"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        await asyncio.sleep(self.seconds)
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Result:
        says = ("[Retrieval] capital of Brisa", "Action: [1]", "Port Salt")
        regex = request.grammar.regex if request.grammar else None
        text = next(text for text in says if regex is None or re.fullmatch(regex, text))
        return Result((), (Completion("Port Salt" if regex is None else text, (), (), "stop"),), 100, 5)

    async def forget(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Fixed:
    fingerprint = "fixed"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        passages = [Passage(f"p{i}", f"Town {i}", "words " * 60) for i in range(k)]
        return [[Hit(p, 1.0) for p in passages] for _ in queries]

    async def close(self) -> None:
        pass


def opened(name: str, seconds: float) -> Opened:
    async def close() -> None:
        pass

    engine = Instant(seconds)
    return Opened(build(SystemName.parse(name).system), Backends(engine, engine, Fixed()), "0", close)


def serve(listener: socket.socket, seconds: float, concurrency: int, ready: Event) -> None:
    """The endpoint, until the process is ended."""

    async def run() -> None:
        settings = ServeParams(models=(SYSTEM,), concurrency=concurrency, queue=concurrency)
        async with Models(settings.models, lambda name: opened(name, seconds), None) as models:
            app = create_app(Service(models, settings, Metrics()))
            config = uvicorn.Config(app, log_level="error", access_log=False, timeout_keep_alive=KEEP_ALIVE_S)
            server = uvicorn.Server(config)
            ready.set()
            await server.serve(sockets=[listener])

    asyncio.run(run())


@contextlib.asynccontextmanager
async def endpoint(seconds: float, concurrency: int) -> AsyncIterator[str]:
    processes = multiprocessing.get_context("fork")
    ready = processes.Event()
    # The protocol by name: asyncio sends small packets at once (TCP_NODELAY) only where it stands in the socket, and 40 ms
    # late elsewhere. A server that opens its own port, as `dragoman serve` does, has it.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        process = processes.Process(target=serve, args=(listener, seconds, concurrency, ready), daemon=True)
        process.start()
        await asyncio.to_thread(ready.wait)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            if process.exitcode is not None:
                print(f"the endpoint has ended by itself, with exit code {process.exitcode}")
            process.terminate()
            process.join()


async def in_process(question: str, seconds: float) -> float:
    model = opened(SYSTEM, seconds)
    started = time.perf_counter()
    await Tree(Question("q", question), model.system, model.backends).grow(system_name=SYSTEM)
    return time.perf_counter() - started


async def over_http(client: httpx.AsyncClient, question: str) -> tuple[float, int]:
    body = {"model": SYSTEM, "messages": [{"role": "user", "content": question}]}
    started = time.perf_counter()
    response = await client.post("/v1/chat/completions", json=body)
    return time.perf_counter() - started, response.status_code


async def overhead(url: str, requests: int, repeats: int, seconds: float) -> None:
    """One question at a time, both ways in turn."""
    samples: list[Sample] = []
    differences: list[float] = []
    async with httpx.AsyncClient(base_url=url) as client:
        for i in range(20):  # warm up
            await over_http(client, f"warm {i}")
            await in_process(f"warm {i}", seconds)
        for repeat in range(repeats):
            direct, served = [], []
            for i in range(requests):
                direct.append(await in_process(f"{repeat} {i}", seconds))
                took, status = await over_http(client, f"{repeat} {i}")
                assert status == 200, status
                served.append(took)
            differences.append(float(np.median(served) - np.median(direct)) * 1000)
            samples.append(Sample(repeat, {"in process": float(np.sum(direct)), "endpoint": float(np.sum(served))}))
    report(f"{requests} questions, one at a time", samples, base="in process")
    draws = np.random.default_rng(0).integers(0, repeats, (2000, repeats))
    low, high = np.percentile(np.median(np.array(differences)[draws], axis=1), [2.5, 97.5])
    print(f"  overhead at the median   {np.median(differences):8.2f} ms [{low:.2f}, {high:.2f}]")


async def load(url: str, clients: int, seconds: float) -> None:
    """So many clients, each asking again as soon as it is answered."""
    until = time.perf_counter() + seconds
    times: list[float] = []
    statuses: Counter[int] = Counter()

    async def one(number: int, client: httpx.AsyncClient) -> None:
        asked = 0
        while time.perf_counter() < until:
            took, status = await over_http(client, f"{number} {asked}")
            times.append(took)
            statuses[status] += 1
            asked += 1

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        await asyncio.gather(*(one(number, client) for number in range(clients)))
    middle, late = np.percentile(times, [50, 99]) * 1000
    print(
        f"{clients} clients for {seconds:.0f} s: {len(times) / seconds:.0f} answers a second, by status {dict(statuses)}"
    )
    print(f"  median {middle:.0f} ms, 99th percentile {late:.0f} ms")


async def measure(options: argparse.Namespace) -> None:
    async with endpoint(options.llm_ms / 1000, options.clients) as url:
        await overhead(url, options.requests, options.repeats, options.llm_ms / 1000)
        await load(url, options.clients, options.seconds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--llm-ms", type=float, default=0, help="how long each call of a model takes")
    asyncio.run(measure(parser.parse_args(argv)))


if __name__ == "__main__":
    main()

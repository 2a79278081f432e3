"""Our scheduler against one call at a time, and against lock-step batches, on the same questions in one run.

Lock-step is how C-3PO's published code advances its trees: all questions wait until each of them needs the model, then all
of their requests go out as one batch, and nobody goes on before the last of it is back.

    python -m benchmarks.scheduler --questions 32 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.ratios import Sample, report
from dragoman.config import load_params
from dragoman.core.types import Question
from dragoman.corpus import load_questions
from dragoman.engines.base import Engine, Request, Result
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import open_runtime
from dragoman.systems.base import System


class Around:
    """An engine around another one."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.fingerprint = inner, inner.fingerprint

    async def forget(self) -> None:
        await self.inner.forget()

    async def close(self) -> None:
        await self.inner.close()


class OneAtATime(Around):
    """An engine that is given one request, and the next when that is answered."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._turn = asyncio.Lock()

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        results = []
        for request in requests:
            async with self._turn:
                results += await self.inner.generate([request])
        return results


class LockStep(Around):
    """An engine that sends a batch when all that is under way waits for it, and gives it back when all of it is done.

    Nobody is under way any more when no request has come for `quiet` seconds, which is far more than a search takes.
    """

    def __init__(self, inner: Engine, quiet: float = 0.02) -> None:
        super().__init__(inner)
        self.quiet = quiet
        self._waiting: list[tuple[Request, asyncio.Future[Result]]] = []
        self._driver: asyncio.Task[None] | None = None

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in requests]
        self._waiting += zip(requests, futures, strict=True)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return list(await asyncio.gather(*futures))

    async def _drive(self) -> None:
        while self._waiting:
            seen = -1
            while seen != len(self._waiting):
                seen = len(self._waiting)
                await asyncio.sleep(self.quiet)
            batch, self._waiting = self._waiting, []
            results = await self.inner.generate([request for request, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)
            await asyncio.sleep(self.quiet)


async def seconds(
    questions: Sequence[Question],
    system: System,
    backends: Backends,
    exploration: Exploration,
    concurrency: int,
    seed: int,
    name: str = "c3po",
    episodes: list[Episode] | None = None,
) -> float:
    """Wall clock of a rollout that starts with nothing in the engines' prefix caches. Adds what it made to `episodes`."""
    await backends.llm.forget()
    await backends.proxy.forget()
    with tempfile.TemporaryDirectory() as folder, EpisodeStore(Path(folder)) as store:
        started = time.perf_counter()
        made = await roll_out(
            questions, name, system, backends, store, exploration=exploration, concurrency=concurrency, seed=seed
        )
        took = time.perf_counter() - started
    if episodes is not None:
        episodes += made
    return took


async def measure(n: int, repeats: int, tree: bool) -> tuple[list[Sample], list[Episode]]:
    """The seconds of each, and the episodes of our scheduler."""
    params = load_params()
    questions = load_questions("data/atlas/dev.jsonl", limit=n)
    exploration = TREE if tree else Exploration(breadth=(1,), force=0)
    samples: list[Sample] = []
    episodes: list[Episode] = []
    async with open_runtime(params, "data/index/atlas") as runtime:
        system, backends = runtime.open("c3po")
        await seconds(questions[:4], system, backends, exploration, 4, seed=-1)  # warm up
        for repeat in range(repeats):
            lock, single = LockStep(backends.llm), OneAtATime(backends.llm)
            stepped_world = replace(backends, llm=lock, proxy=lock)
            single_world = replace(backends, llm=single, proxy=single)
            samples.append(
                Sample(
                    repeat,
                    {
                        "scheduler": await seconds(
                            questions, system, backends, exploration, n, repeat, episodes=episodes
                        ),
                        "lock-step": await seconds(questions, system, stepped_world, exploration, n, repeat),
                        "one at a time": await seconds(questions, system, single_world, exploration, 1, repeat),
                    },
                )
            )
    return samples, episodes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tree", action="store_true", help="roll out trees rather than single trajectories")
    options = parser.parse_args(argv)
    samples, episodes = asyncio.run(measure(options.questions, options.repeats, options.tree))
    report(f"c3po, {options.questions} questions, {'trees' if options.tree else 'single'}", samples, base="scheduler")
    made, n = figures(episodes, reward=""), len(episodes)
    per_question = f"{made['trajectories'] / n:.1f} trajectories and {made['tokens'] / n:.0f} tokens a question"
    print(f"  {per_question}; {made['cached_share']:.0%} of the decisions' prompt tokens from the prefix cache")


if __name__ == "__main__":
    main()

"""Our scheduler against one call at a time, and against lock-step batches, on the same questions in one run.

Lock-step is how C-3PO's published code advances its trees: all questions wait until each of them needs the model, then all
of their requests go out as one batch, and nobody goes on before the last of it is back.

    python -m benchmarks.scheduler --system c3po@rl --questions 32 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.ratios import Sample, report
from dragoman.config import load_params
from dragoman.core.types import Question
from dragoman.corpus import load_questions
from dragoman.engines.base import Engine, Front, Request, Result
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.rollout.figures import figures
from dragoman.rollout.record import Episode
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.runtime import open_runtime
from dragoman.systems.base import System


class Around(Front):
    """An engine whose requests another one sends out."""

    def __init__(self, inner: Engine, sender: Sender) -> None:
        super().__init__(inner)
        self.sender = sender

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        return list(await asyncio.gather(*(self.sender.send(self.inner, request) for request in requests)))


class Sender(Protocol):
    """When the requests to all engines go out."""

    async def send(self, engine: Engine, request: Request) -> Result: ...


class OneAtATime:
    """One request, and the next when that is answered, whichever engine it is for."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def send(self, engine: Engine, request: Request) -> Result:
        async with self._turn:
            (result,) = await engine.generate([request])
            return result


class LockStep:
    """A batch for each engine when all that is under way waits for one, which is given back when all of it is done.

    Nobody is under way any more when no request has come for `quiet` seconds, which is far more than a search takes.
    """

    def __init__(self, quiet: float = 0.02) -> None:
        self.quiet = quiet
        self._waiting: list[tuple[Engine, Request, asyncio.Future[Result]]] = []
        self._driver: asyncio.Task[None] | None = None

    async def send(self, engine: Engine, request: Request) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((engine, request, future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await future

    async def _drive(self) -> None:
        while self._waiting:
            seen = -1
            while seen != len(self._waiting):
                seen = len(self._waiting)
                await asyncio.sleep(self.quiet)
            batch, self._waiting = self._waiting, []
            results: list[tuple[asyncio.Future[Result], list[Result] | BaseException]] = []
            for engine in {id(engine): engine for engine, _, _ in batch}.values():
                own = [(request, future) for each, request, future in batch if each is engine]
                # sent at once, they are a batch of the engine's own; and one that fails fails alone
                sent = (engine.generate([request]) for request, _ in own)
                answers = await asyncio.gather(*sent, return_exceptions=True)
                results += zip((future for _, future in own), answers, strict=True)
            for future, answer in results:
                if future.done():  # whoever waited has given up
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer[0])
            await asyncio.sleep(self.quiet)


def sent_by(sender: Sender, backends: Backends) -> Backends:
    """The same backends, with all calls of LLM and proxy sent out by `sender`."""
    proxies = {role: Around(engine, sender) for role, engine in backends.engines.items()}
    return replace(backends, llm=Around(backends.llm, sender), proxy=Around(backends.proxy, sender), engines=proxies)


async def seconds(
    questions: Sequence[Question],
    system: System,
    backends: Backends,
    exploration: Exploration,
    concurrency: int,
    seed: int,
    name: str,
    episodes: list[Episode] | None = None,
) -> float:
    """Wall clock of a rollout that starts with nothing in the engines' prefix caches. Adds what it made to `episodes`."""
    for engine in (backends.llm, backends.proxy, *backends.engines.values()):
        await engine.forget()
    with tempfile.TemporaryDirectory() as folder, EpisodeStore(Path(folder)) as store:
        started = time.perf_counter()
        made = await roll_out(
            questions, name, system, backends, store, exploration=exploration, concurrency=concurrency, seed=seed
        )
        took = time.perf_counter() - started
    if episodes is not None:
        episodes += made
    return took


async def measure(name: str, n: int, repeats: int, tree: bool) -> tuple[list[Sample], list[Episode]]:
    """The seconds of each, and the episodes of our scheduler."""
    params = load_params()
    questions = load_questions("data/atlas/dev.jsonl", limit=n)
    exploration = TREE if tree else Exploration(breadth=(1,), force=0)
    samples: list[Sample] = []
    episodes: list[Episode] = []
    async with open_runtime(params, "data/index/atlas") as runtime:
        system, backends = runtime.open(name)

        async def took(backends: Backends, at_once: int, repeat: int, made: list[Episode] | None = None) -> float:
            return await seconds(questions, system, backends, exploration, at_once, repeat, name=name, episodes=made)

        await seconds(questions[:4], system, backends, exploration, 4, seed=-1, name=name)  # warm up
        for repeat in range(repeats):
            runs = {
                "scheduler": partial(took, backends, n, repeat, episodes),
                "lock-step": partial(took, sent_by(LockStep(), backends), n, repeat),
                "one at a time": partial(took, sent_by(OneAtATime(), backends), 1, repeat),
            }
            order = [*runs][repeat % len(runs) :] + [*runs][: repeat % len(runs)]  # none is always the first
            found = {contestant: await runs[contestant]() for contestant in order}
            samples.append(Sample(repeat, {contestant: found[contestant] for contestant in runs}))
    return samples, episodes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="c3po@rl")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tree", action="store_true", help="roll out trees rather than single trajectories")
    options = parser.parse_args(argv)
    samples, episodes = asyncio.run(measure(options.system, options.questions, options.repeats, options.tree))
    report(
        f"{options.system}, {options.questions} questions, {'trees' if options.tree else 'single'}",
        samples,
        base="scheduler",
    )
    made, n = figures(episodes, reward=""), len(episodes)
    per_question = f"{made['trajectories'] / n:.1f} trajectories and {made['tokens'] / n:.0f} tokens a question"
    print(f"  {per_question}; {made['cached_share']:.0%} of the decisions' prompt tokens from the prefix cache")


if __name__ == "__main__":
    main()

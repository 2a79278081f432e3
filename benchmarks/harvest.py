"""How long it takes to make a data set of served traffic: episodes of a real system's size, with feedback on some.

The questions are those of templates over made-up towns. Some are asked again, some name an address or a number, some have
feedback. The folder is made anew and removed, unless `--folder` names one to keep.

    python -m benchmarks.harvest --episodes 10000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from dragoman.config import Params
from dragoman.core import files
from dragoman.core.types import Passage
from dragoman.pipeline import harvest
from dragoman.pipeline.project import Project
from dragoman.rollout.feedback import FEEDBACK, Feedback
from dragoman.rollout.record import Call, Episode, Node, Trajectory
from dragoman.rollout.store import EPISODES
from dragoman.systems.base import StopReason

TOWNS = 2000
TEMPLATES = (
    "What is the river of {0}?",
    "Which river flows past {0}, the town of {1}?",
    "Is {0} larger than {1}?",
    "Who wrote to town{2}@{0}.example.org about {1}?",
    "Who called +41 44 {2:03d} 18 {3:02d}?",
)
WORDS = 100
"""Words of a passage."""
FOUND = 5
"""Passages in each prompt."""


def passages() -> list[Passage]:
    return [
        Passage(f"p{n}", f"Town{n}", f"Town{n} lies on the river Merin{n}. " + "word " * WORDS) for n in range(TOWNS)
    ]


def episode(number: int, rng: random.Random, corpus: Sequence[Passage]) -> Episode:
    """One that searches once and keeps what it has found, as C-3PO does."""
    town, other = rng.randrange(TOWNS), rng.randrange(TOWNS)
    question = rng.choice(TEMPLATES).format(f"Town{town}", f"Town{other}", rng.randrange(1000), rng.randrange(100))
    found = [corpus[(town + n) % TOWNS] for n in range(FOUND)]
    prompt = [("user", "\n".join(f"{p.title}\n{p.text}" for p in found) + f"\nQuestion: {question}")]
    common = {"started": 0.0, "seconds": 0.1, "prompt_tokens": 900, "completion_tokens": 3}
    decided = [
        Node(
            id=f"n{n}", parent=None, point=f"n{n}", role="router", depth=n + 1, prompt=prompt, prompt_ids=list(range(900)),
            completion_ids=[1, 2, 3], logprobs=[-0.1] * 3, text="[Retrieval]", action={"type": "Search"}, temperature=0, **common,
        )
        for n in range(2)
    ]  # fmt: skip
    calls = [
        Call(id="c0", kind="search", name="search", input={"query": question, "k": FOUND, "page": 0}, output=[p.id for p in found], started=0.0, seconds=0.1),
        Call(id="c1", kind="ask", name="answer", input=prompt, output=f"Merin{town}", **common),
    ]  # fmt: skip
    end = Trajectory(
        nodes=["n0", "n1"], steps=["n0", "c0", "n1", "c1"], answer=f"Merin{town}", passages=[p.id for p in found], stop=StopReason.ANSWERED
    )  # fmt: skip
    return Episode(
        key=f"{number:032x}", asked_by=rng.choice(["alice", "bob", None]), question={"id": f"{number}", "question": question},
        system="c3po@champion", config={"policy": rng.choice(["p1", "p2"])}, nodes=decided, calls=calls, trajectories=[end],
        started=0, seconds=0.5,
    )  # fmt: skip


def feedback(episodes: Sequence[Episode], rng: random.Random) -> Iterator[Feedback]:
    """On a third of them."""
    for one in episodes:
        draw = rng.random()
        if draw < 0.2:
            yield Feedback(id=one.key, by=one.asked_by, rating="up", passages=one.trajectories[0].passages[:1], at=draw)
        elif draw < 0.3:
            yield Feedback(id=one.key, by=one.asked_by, rating="down", answer="Merin" if draw < 0.25 else None, at=draw)


def make(folder: Path, count: int) -> None:
    """A project with a data set, and what its endpoint has kept."""
    rng, corpus = random.Random(0), passages()
    files.write(folder / "data" / "atlas" / "corpus.jsonl", map(asdict, corpus))
    kept: list[Episode] = []
    with files.replacing(folder / "kept" / EPISODES) as path, path.open("w", encoding="utf-8") as lines:
        for number in range(count):
            one = episode(number, rng, corpus)
            lines.write(files.dumps(one.model_dump(mode="json")) + "\n")
            kept.append(one.model_copy(update={"nodes": [], "calls": []}))
    files.write(folder / "kept" / FEEDBACK, (one.model_dump(mode="json") for one in feedback(kept, rng)))


def measure(folder: Path, count: int) -> None:
    make(folder, count)
    size = (folder / "kept" / EPISODES).stat().st_size / (1 << 20)
    params = Params().changed(
        {"serve.episodes": str(folder / "kept"), "harvest.draws": 2, "harvest.forbidden": ["bob"]}, origin="benchmark"
    )
    started = time.perf_counter()
    metrics = asyncio.run(harvest.run(Project(folder, params, track=False), harvest.Options()))
    seconds = time.perf_counter() - started
    print(f"{count} episodes, {size:.0f} MiB: {seconds:.1f} s, {count / seconds:.0f} episodes a second")
    print(f"  {sum(metrics['questions'].values())} questions: {metrics['labels']}; dropped: {metrics['dropped']}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where to make the project; a temporary folder by default")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        measure(options.folder or Path(temporary), options.episodes)


if __name__ == "__main__":
    main()

"""A made-up corpus of lands, small and of any size, and runs over it that can be stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from dragoman.core.journal import Journal
from dragoman.core.types import Passage, Triple
from dragoman.synthesis import filters
from dragoman.synthesis.brief import Brief, Draft, Rejected, Writer
from dragoman.synthesis.facts import facts_of
from dragoman.synthesis.filters import Filter
from dragoman.synthesis.grounded import GroundedWriter
from dragoman.synthesis.plan import Plan, load_plan
from dragoman.synthesis.settings import SynthesizeParams
from dragoman.synthesis.synthesize import JOURNAL, Filled, synthesize

# What is expected of these three is written out by hand in the tests.
BHUTAN = Passage(
    "bt", "Bhutan", "Bhutan is a kingdom in Asia. Its capital is Thimphu, and its people pay with the ngultrum."
)
NEPAL = Passage("np", "Nepal", "The capital of Nepal is Kathmandu. Shops take the Nepalese rupee.")
THIMPHU = Passage("th", "Thimphu", "Thimphu is a town in Bhutan, high above the sea.")
THREE = (BHUTAN, NEPAL, THIMPHU)
TRIPLES: list[Triple] = [
    ("Bhutan", "capital", "Thimphu"),
    ("Bhutan", "currency", "ngultrum"),
    ("Nepal", "capital", "Kathmandu"),
    ("Nepal", "currency", "Nepalese rupee"),
    ("Nepalese rupee", "also called", "rupee of Nepal"),
    ("Thimphu", "country", "Bhutan"),
]

FIRST = ("Ar", "Bo", "Cu", "De", "Fi", "Ga", "Ho", "Ji", "Ka", "Lu")
LAST = ("dania", "minor", "viana", "stania", "lorien", "norway")


async def taste(draft: Draft, passages: Sequence[Passage]) -> str:
    """Refuses a third of all questions for no reason, so that slots take several rounds."""
    return "" if sum(draft.question.encode()) % 3 else "not to my taste"


CHECKS: dict[str, Filter] = {
    "length": filters.length(2, 100),
    "answer leaked": filters.leakage,
    "answer not in its passages": filters.grounded,
    "taste": taste,
}


def lands(count: int) -> tuple[list[Passage], list[Triple]]:
    """So many passages, at most 60, each about a land that borders the next, and what they say as triples."""
    names = [first + last for last in LAST for first in FIRST][:count]
    passages: list[Passage] = []
    triples: list[Triple] = []
    for i, name in enumerate(names):
        capital, money, code = f"{name[:-2]}ville", f"{name[:-1].lower()}ar", f"+{100 + i}"
        neighbour = names[(i + 1) % len(names)]
        text = (
            f"This land borders {neighbour}. Its capital is {capital}, where shops take the {money}. "
            f"From abroad one dials {code}."
        )
        passages.append(Passage(f"land-{i:02}", name, text))
        triples += [
            (name, "capital", capital),
            (name, "currency", money),
            (name, "calling code", code),
            (name, "borders", neighbour),
        ]
    return passages, triples


def settings(**values: object) -> SynthesizeParams:
    return SynthesizeParams.model_validate({"retrievable": 0, "candidates": 1} | values)


class Watched:
    """A writer around another, of which it can be known what it has done, and which can be made to fail."""

    def __init__(self, writer: Writer, before: Callable[[Brief, int], None] = lambda brief, calls: None) -> None:
        self.writer, self.before, self.fingerprint = writer, before, writer.fingerprint
        self.called: list[tuple[str, int]] = []
        """Slot and attempt of each call, and in `done` of each that came to its end."""
        self.done: list[tuple[str, int]] = []

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        self.called.append((brief.slot, brief.attempt))
        # calls end in another order than they began in, and several are under way when one fails
        await asyncio.sleep(brief.rng("delay").random() / 500)
        self.before(brief, len(self.done))
        drafts = await self.writer.write(brief, candidates)
        self.done.append((brief.slot, brief.attempt))
        return drafts


def grounded(count: int) -> GroundedWriter:
    return GroundedWriter(facts_of(*lands(count)))


def run(
    out: Path,
    writer: Writer | None = None,
    *,
    count: int = 40,
    n: int = 30,
    seed: int = 0,
    origin: str = "lands",
    plan: Plan | None = None,
    checks: dict[str, Filter] | None = None,
    known: Collection[str] = (),
    **values: object,
) -> Filled:
    """Write questions about so many lands, in an event loop of its own as the command has it."""
    passages, triples = lands(count)
    work = synthesize(
        passages,
        triples,
        writer or grounded(count),
        plan or load_plan(),
        CHECKS if checks is None else checks,
        settings(**values),
        n=n,
        seed=seed,
        out=out,
        origin=origin,
        known=known,
    )
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(_told)
        return runner.run(work)


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of a KeyboardInterrupt in a task, asyncio complains once more when the task is collected, at no good time."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def files(out: Path) -> dict[str, bytes]:
    """What a run has made of its questions. The journal is in the order in which calls ended, which no one promises."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.jsonl")) if path.name != JOURNAL}


def journalled(out: Path) -> int:
    """How many values are written down."""
    with Journal(out / JOURNAL) as journal:
        return len(journal._values)


if __name__ == "__main__":  # a run to be killed: calls that take long enough to be found under way

    class Slow(Watched):
        async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
            await asyncio.sleep(0.5)
            return await super().write(brief, candidates)

    run(Path(sys.argv[1]), Slow(grounded(40)), concurrency=2)

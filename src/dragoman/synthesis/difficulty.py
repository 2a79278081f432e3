"""How hard a question is for the frozen LLM: from memory, with what a search finds, with its own passages."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import ASKED_IN_VAIN, EngineFault, Fault, RetrieverFault, UserError
from dragoman.core.journal import Journal, digest
from dragoman.core.progress import bar
from dragoman.core.types import Passage
from dragoman.retrieval.base import Retriever
from dragoman.synthesis.filters import HALF
from dragoman.synthesis.reader import Reader

log = logging.getLogger(__name__)

LABELS = ("easy", "medium", "hard")
JOURNAL = "difficulty.jsonl"


def label(rates: Mapping[str, float]) -> str:
    """`easy` when the LLM mostly knows the answer, `medium` when one search is mostly enough, else `hard`."""
    if rates["direct"] >= HALF:
        return "easy"
    return "medium" if rates["standard"] >= HALF else "hard"


async def rate(
    questions: Sequence[dict[str, Any]],
    passages: Mapping[str, Passage],
    reader: Reader,
    retriever: Retriever,
    *,
    k: int,
    concurrency: int,
    out: Path,
) -> list[dict[str, Any]]:
    """The rows of questions with a `difficulty`: how often each way of answering succeeded, and the label.

    A question that the LLM cannot be asked, or refuses to read, keeps none.

    Raises:
        Fault: some could not be judged, since the LLM or the retriever failed; the others are written down.
    """
    faults: list[str] = []
    gate = asyncio.Semaphore(concurrency)

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        text, answers, parts = row["question"], row["answers"], row.get("parts", [])
        gold = [passages[id] for id in row["supporting_ids"]]

        async def rates() -> dict[str, float]:
            (hits,) = await retriever.search([text], k)
            found = [hit.passage for hit in hits]
            ways: dict[str, list[Passage]] = {"direct": [], "standard": found, "gold": gold}
            shares = await asyncio.gather(*(reader.success(text, answers, read, parts) for read in ways.values()))
            return dict(zip(ways, shares, strict=True))

        key = digest(reader.fingerprint, retriever.fingerprint, k, text, answers, gold, *([parts] if parts else []))
        async with gate:
            try:
                known = await journal.get(key, rates)
            except ASKED_IN_VAIN as e:
                log.warning("difficulty: question %s: %s", row["id"], e)
                advance()
                return row
            except (EngineFault, RetrieverFault) as e:  # is not written down: the next run tries again
                faults.append(str(e))
                return row
        advance()
        return row | {"difficulty": {"label": label(known), **known}}

    with Journal(out / JOURNAL, locked=True) as journal, bar("difficulty", len(questions)) as advance:
        judged = list(await asyncio.gather(*(one(row) for row in questions)))
    if faults:
        raise Fault(
            f"difficulty: {len(faults)} of {len(questions)} questions met a fault ({faults[0]}); the others are kept in "
            f"{out / JOURNAL}: run the same again when it has passed"
        )
    return judged


def curriculum(paths: Sequence[Path], planned: int, seed: int) -> dict[str, int]:
    """The rank of each question by its label (without one it is `medium`), so that what is trained on goes from easy to hard.

    A run that takes `planned` questions, fewer than there are, would see the easy ones only: chance chooses those that it
    sees, as many of each label as there are in proportion. The others have no rank.

    Raises:
        UserError: no such file, or a label that is none.
    """
    ranks = {}
    for path in paths:
        for number, row in files.read(path):
            name = (row.get("difficulty") or {}).get("label", "medium")
            if name not in LABELS:
                raise UserError(f"{path}:{number}: the difficulty {name!r} is none of {', '.join(LABELS)}")
            ranks[str(row["id"])] = LABELS.index(name)
    order = sorted(ranks)
    random.Random(f"{seed} curriculum").shuffle(order)
    return {id: ranks[id] for id in order[:planned]}

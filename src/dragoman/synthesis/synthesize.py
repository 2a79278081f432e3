"""Stage `synthesize`: questions to a plan, about the passages of a corpus, checked before they are kept.

Each question that is wanted is a *slot* with its categories. In rounds, every open slot draws passages and has candidates
written about them; the first that passes all filters fills it. What is drawn depends on the seed, the slot and the round
alone, and slots are filled in their order, so equal seeds give equal questions, interrupted or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from dragoman.core import files
from dragoman.core.errors import EngineFault, Fault, PromptTooLong, Refused, RetrieverFault, UserError
from dragoman.core.journal import Journal, digest
from dragoman.core.progress import bar
from dragoman.core.text import printable, same_question
from dragoman.core.types import Passage, Triple
from dragoman.corpus.names import SPLITS
from dragoman.synthesis.brief import NOT_PARSED, UNASKED, UNRELATED, Brief, Draft, Rejected, Writer
from dragoman.synthesis.filters import Duplicates, Filter
from dragoman.synthesis.plan import Plan
from dragoman.synthesis.settings import SynthesizeParams
from dragoman.synthesis.shelf import Shelf, split_passages

JOURNAL = "written.jsonl"
REJECTED = "rejected.jsonl"
KNOWN = "in the data set already"
"""The reason for which a question is left out that is one of the gold ones."""
FILTERED = "refused by a filter"
TRIED = 20
"""Questions that are asked for before all others. A server that holds no answer to its form is found out by them."""


@dataclass(frozen=True)
class Slot:
    """One question that is wanted."""

    id: str
    split: str
    categories: Mapping[str, str]


@dataclass(frozen=True)
class Filled:
    """What came of the slots: a row for each question, by split, and one for each rejected candidate."""

    questions: dict[str, list[dict[str, Any]]]
    rejected: list[dict[str, Any]]
    open: int
    """Slots that no attempt has filled."""

    @property
    def kept(self) -> int:
        return sum(map(len, self.questions.values()))

    @property
    def reasons(self) -> dict[str, int]:
        """How many candidates were rejected, by reason, the most frequent first."""
        return dict(Counter(row["reason"] for row in self.rejected).most_common())


def sizes(n: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`n` questions by split, in their shares, the last split taking what rounding leaves.

    From three questions on, each split with a share has one: the next commands refuse an empty file.
    """
    reached = 0.0
    counts: dict[str, int] = {}
    for split in SPLITS:
        start, reached = round(n * reached), reached + shares[split]
        counts[split] = round(n * min(reached, 1.0)) - start
    if n >= len(SPLITS):
        for split in SPLITS:
            if shares[split] and not counts[split]:
                counts[max(counts, key=counts.__getitem__)] -= 1
                counts[split] = 1
    return counts


async def synthesize(
    passages: Sequence[Passage],
    triples: Sequence[Triple],
    writer: Writer,
    plan: Plan,
    checks: Mapping[str, Filter],
    settings: SynthesizeParams,
    *,
    n: int,
    seed: int,
    out: Path,
    origin: str,
    known: Collection[str] = (),
) -> Filled:
    """Write `n` questions, and `train.jsonl`, `dev.jsonl`, `test.jsonl` and `rejected.jsonl` into `out`.

    Whoever calls it is the only writer of `out`, also of what it makes of the questions afterwards.

    Args:
        passages: what may be asked about. Each split has its own.
        triples: links between passages, where they are known.
        checks: filters by name, in the order in which they are applied.
        origin: names what the results depend on beside writer, plan and settings: corpus, filters and models.
        known: gold questions of all splits, as `same_question` has them, which are not to be asked again.

    Raises:
        UserError: nothing at all passed the filters, with the reasons; or too few passages.
        Fault: an engine or a retriever failed in a round. The same command will go on from what is kept.
    """
    shelves = {split: Shelf(own, triples) for split, own in split_passages(passages, settings.shares, seed).items()}
    slots = [
        Slot(f"{split}-{i:04}", split, categories)
        for split, count in sizes(n, settings.shares).items()
        for i, categories in enumerate(plan.deal(count, Random(f"{seed} {split}")), start=1)
    ]
    duplicates = Duplicates(settings.duplicate)
    questions: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    filled: dict[str, dict[str, Any]] = {}
    rejected: list[dict[str, Any]] = []
    faults: list[str] = []
    gate = asyncio.Semaphore(settings.concurrency)

    async def attempt(slot: Slot, round: int, journal: Journal) -> list[dict[str, Any]]:
        """The candidates of one slot, each with what became of it."""
        brief = _brief(slot, round, shelves[slot.split], seed)
        if not brief.passages:
            return [{"reason": UNRELATED, "detail": slot.split}]
        key = digest(
            origin, writer.fingerprint, sorted(slot.categories.items()), slot.id, round, seed, settings.candidates
        )
        async with gate:
            try:
                rows: list[dict[str, Any]] = await journal.get(
                    key, lambda: _candidates(brief, writer, checks, settings)
                )
            except (EngineFault, RetrieverFault) as e:  # is not written down: the next run tries again
                faults.append(str(e))
                return []
        return rows

    with Journal(out / JOURNAL, locked=True) as journal, bar("synthesize", n) as advance:
        for round, left in _parts(slots, filled, settings.attempts):
            written = await asyncio.gather(*(attempt(slot, round, journal) for slot in left))
            if faults:
                raise Fault(
                    f"synthesize: {len(faults)} of {len(left)} questions met a fault ({faults[0]}); what was written is kept in "
                    f"{journal.path}: run the same again when it has passed"
                )
            for slot, rows in zip(left, written, strict=True):
                for row in rows:
                    draft = Draft.from_json(row["draft"]) if row.get("draft") else None
                    reason, detail = row.get("reason", ""), row.get("detail", "")
                    if draft and not reason and same_question(draft.question) in known:
                        reason = KNOWN
                    if draft and not reason and (same := duplicates.of(draft.question)):
                        reason, detail = "near-duplicate", same
                    if draft and not reason:
                        filled[slot.id] = draft.row(slot.id, slot.categories)
                        duplicates.keep(slot.id, draft.question)
                        advance(printable(draft.question[:60]))
                        break
                    rejected.append(_rejection(slot, round, draft, reason, detail))
            if not filled:
                _check_readable(rejected, out)
    for slot in slots:
        if slot.id in filled:
            questions[slot.split].append(filled[slot.id])
    result = Filled(questions, rejected, open=len(slots) - len(filled))
    files.write(out / REJECTED, rejected)
    if not filled:
        table = ", ".join(f"{count} {reason}" for reason, count in result.reasons.items())
        raise UserError(f"synthesize: none of {len(rejected)} candidates was kept ({table}); see {out / REJECTED}")
    for split, rows in questions.items():
        files.write(out / f"{split}.jsonl", rows)
    return result


def _parts(slots: Sequence[Slot], filled: Collection[str], attempts: int) -> Iterator[tuple[int, Sequence[Slot]]]:
    """The open slots of each round, with its number; of the first round a few, and then the others."""
    yield 0, slots[:TRIED]
    if len(slots) > TRIED:
        yield 0, slots[TRIED:]
    for round in range(1, attempts):
        yield round, [slot for slot in slots if slot.id not in filled]


def _check_readable(rejected: Sequence[dict[str, Any]], out: Path) -> None:
    """
    Raises:
        UserError: nothing that was written so far could be read.
    """
    replies = [row for row in rejected if row["reason"] not in UNASKED]
    if len(replies) >= TRIED and all(row["reason"] == NOT_PARSED for row in replies):
        files.write(out / REJECTED, rejected)
        raise UserError(
            f"synthesize: none of the first {len(replies)} replies could be read ({replies[0]['detail']}); see {out / REJECTED}. "
            "Does the server hold a reply to its form? `structured`, beside `urls`, says how it is asked to. A model that thinks "
            "has to be kept from it: docs/troubleshooting.md"
        )


def _brief(slot: Slot, attempt: int, shelf: Shelf, seed: int) -> Brief:
    brief = Brief(slot.id, attempt, slot.categories, (), seed)
    drawn = shelf.draw(
        brief.rng("passages"),
        count=2 if slot.categories.get("number_of_documents") == "multi-doc" else 1,
        unpopular=slot.categories.get("lexical_similarity") == "unpopular entities",
    )
    return replace(brief, passages=drawn)


async def _candidates(
    brief: Brief, writer: Writer, checks: Mapping[str, Filter], settings: SynthesizeParams
) -> list[dict[str, Any]]:
    """Written and filtered. The first that passes ends it: later candidates are not paid for."""
    rows: list[dict[str, Any]] = []
    try:
        drafts = await writer.write(brief, settings.candidates)
    except Refused as e:
        return [{"reason": FILTERED, "detail": str(e)}]
    for draft in drafts:
        if isinstance(draft, Rejected):
            rows.append({"reason": draft.reason, "detail": draft.detail})
            continue
        reason, detail = await _refused(draft, brief.passages, checks)
        rows.append({"draft": asdict(draft), "reason": reason, "detail": detail})
        if not reason:
            break
    return rows


async def _refused(draft: Draft, passages: Sequence[Passage], checks: Mapping[str, Filter]) -> tuple[str, str]:
    """The first filter that refuses a draft, and what it says. A draft that cannot be checked is refused, too."""
    for name, check in checks.items():
        try:
            said = await check(draft, passages)
        except (Refused, PromptTooLong) as e:  # by the server that reads it; asking again is no use
            return (FILTERED if isinstance(e, Refused) else "too long to check"), f"{name}: {e}"
        if said:
            return name, said
    return "", ""


def _rejection(slot: Slot, attempt: int, draft: Draft | None, reason: str, detail: str) -> dict[str, Any]:
    row = {"slot": slot.id, "attempt": attempt, "reason": reason, "detail": detail}
    if draft is not None:
        row |= {
            "question": draft.question,
            "answers": list(draft.answers),
            "supporting_ids": list(draft.supporting_ids),
        }
    return row

"""What goes between a plan and a writer: the brief of one question, and the question that comes back, or a reason."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.types import Passage, Question, Triple

NOT_PARSED = "not parsed"
NOTHING_TO_ASK, UNRELATED = "nothing to ask", "no related passages"
UNASKED = frozenset((NOTHING_TO_ASK, UNRELATED))
"""Reasons for which a writer is not asked, or asks no model."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What one question is to be like, and the passages it is to be about."""

    slot: str
    """Names the question that is wanted, such as `train-0007`."""
    attempt: int
    categories: Mapping[str, str]
    """Category by categorization."""
    passages: tuple[Passage, ...]
    seed: int

    def rng(self, purpose: str) -> random.Random:
        """Chance that depends on the brief alone, not on what else has been written."""
        return random.Random(f"{self.seed} {self.slot} {self.attempt} {purpose}")


@dataclass(frozen=True, slots=True)
class Draft:
    """A written question with what it was written for."""

    question: str
    """Understood without more: a question of two turns has both."""
    answers: tuple[str, ...]
    """What counts as a match: the names of what is asked for or, of several things, whole answers."""
    reference: str
    """A whole answer, in the phrasing of the plan."""
    nuggets: tuple[str, ...]
    """Everything that a complete answer says: each thing that is asked for, with its name."""
    supporting_ids: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...] = ()
    """Where several things are asked for, the names of each."""
    turns: tuple[str, ...] = ()
    triples: tuple[Triple, ...] = ()
    evidence: tuple[str, ...] = ()
    """What its passages must say for an answer of yes or no to be right."""
    writer: str = ""
    """What wrote it: `grounded` or `engine`."""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Draft:
        """A draft out of `dataclasses.asdict`, after a way through JSON."""
        return cls(**{name: _tuples(value) for name, value in row.items()})

    def row(self, id: str, categories: Mapping[str, str]) -> dict[str, Any]:
        """The line of a question file; what a question has no field for stands beside it."""
        kind = categories.get("number_of_documents", "synthetic")
        question = Question(
            id, self.question, self.answers, kind, self.supporting_ids, self.triples,
            parts=self.parts, nuggets=self.nuggets, reference=self.reference,
        )  # fmt: skip
        return question.to_json() | {
            "categories": dict(categories),
            "turns": list(self.turns),
            "writer": self.writer,
        }


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why there is no question: a reason that can be counted, and what it was about."""

    reason: str
    detail: str = ""


class Writer(Protocol):
    """Writes questions to a brief."""

    fingerprint: str
    """Names what writes: with equal fingerprints, equal briefs give equal questions."""

    async def write(self, brief: Brief, candidates: int) -> Sequence[Draft | Rejected]:
        """Up to so many candidates, none of them checked yet."""
        ...


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value

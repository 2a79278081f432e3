"""The nouns that everything shares: passages and questions. No torch, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Triple = tuple[str, str, str]
"""A fact: subject, relation, object."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable text of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its acceptable answers.

    `supporting_ids` are the gold passages (empty where no gold is known); `type` is the data set's own label;
    `triples` is the path of facts behind the answer, (subject, relation, object) each, where it is known.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    type: str = ""
    supporting_ids: tuple[str, ...] = ()
    triples: tuple[Triple, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "question": self.question,
            "answers": list(self.answers),
            "type": self.type,
            "supporting_ids": list(self.supporting_ids),
            "triples": [list(t) for t in self.triples],
        }

"""The nouns that everything shares: passages and questions. No torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
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
    `triples` is the path of facts behind the answer, (subject, relation, object) each, where it is known. `topics` are the
    entities of a graph that the question is about, where the data set names them.

    Where several things are asked for, `parts` has the acceptable names of each, and `answers` are whole answers. `nuggets` are
    what a complete answer says, a sentence or phrase each, and `reference` is one such answer. All three may be unknown.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    type: str = ""
    supporting_ids: tuple[str, ...] = ()
    triples: tuple[Triple, ...] = field(default=())
    parts: tuple[tuple[str, ...], ...] = ()
    nuggets: tuple[str, ...] = ()
    reference: str = ""
    topics: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A line of a question file. What few questions have is left out of the others."""
        more = {
            "parts": [list(names) for names in self.parts],
            "nuggets": list(self.nuggets),
            "reference": self.reference,
            "topic": list(self.topics),
        }
        return {
            "id": self.id,
            "question": self.question,
            "answers": list(self.answers),
            "type": self.type,
            "supporting_ids": list(self.supporting_ids),
            "triples": [list(t) for t in self.triples],
        } | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Question:
        """What `to_json` gave."""
        return cls(**{name: _tuples(value) for name, value in fields_of(row).items()})


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a question file by the names of the fields of `Question`, which are those of its keys but for one."""
    return {"topics" if name == "topic" else name: value for name, value in row.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

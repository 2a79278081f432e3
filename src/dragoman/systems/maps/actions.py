"""What the three agents of MAPS may say (appendix A)."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.systems.grammar import Form, Line, OneOf, Slot


@dataclass(frozen=True)
class Extend:
    """Query extension agent: search for this next."""

    query: str


@dataclass(frozen=True)
class Sufficient:
    """Judge agent: what the pool holds is enough for the answer."""


@dataclass(frozen=True)
class Insufficient:
    """Judge agent: something is missing."""


@dataclass(frozen=True)
class Answer:
    """Answer agent: the answer and nothing else."""

    text: str


def extension(query: Slot) -> OneOf:
    """One new query, and no other text."""
    return OneOf(Form(Extend, "{query}", query=query))


def judge() -> OneOf:
    """One of two verdicts."""
    return OneOf(Form(Sufficient, "[Sufficient]"), Form(Insufficient, "[Insufficient]"))


def answer(text: Line) -> OneOf:
    """The answer, and no other text."""
    return OneOf(Form(Answer, "{text}", text=text))

"""What Mujica's planner knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from dragoman.core.types import Passage


@dataclass(frozen=True)
class Fact:
    """A subquestion q_i with its answer a_i, which is empty when nothing was found."""

    question: str
    answer: str


@dataclass(frozen=True)
class State:
    """What is known between two turns of the planner."""

    facts: tuple[Fact, ...] = ()
    kept: tuple[Passage, ...] = ()
    candidates: tuple[str, ...] = ()
    """Names of entities to start from; none where the environment is text."""

    def unanswered(self, questions: Sequence[str]) -> tuple[str, ...]:
        """Those that have no answer yet."""
        answered = {fact.question for fact in self.facts if fact.answer}
        return tuple(question for question in questions if question not in answered)

    def with_replies(self, replies: Mapping[str, tuple[str, Sequence[Passage]]], max_documents: int) -> State:
        """With the answer to each subquestion, and the passages it rests on."""
        # Passages of several subquestions take turns, so that the limit cuts all of them alike.
        ranks = zip_longest(*(found for _, found in replies.values()))
        kept = {p.id: p for p in (*self.kept, *chain.from_iterable(ranks)) if p is not None}
        facts = {fact.question: fact for fact in self.facts} | {q: Fact(q, said) for q, (said, _) in replies.items()}
        return replace(self, facts=tuple(facts.values()), kept=tuple(kept.values())[:max_documents])

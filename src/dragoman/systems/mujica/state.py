"""What Mujica's planner knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from dragoman.core.types import Passage
from dragoman.systems.evidence import merged
from dragoman.systems.mujica.slots import Search


@dataclass(frozen=True)
class Fact:
    """A subquestion q_i with its answer a_i, which is empty when nothing was found."""

    question: str
    answer: str


@dataclass(frozen=True)
class Turn:
    """What the planner said, and what it was told in return."""

    said: str
    facts: tuple[Fact, ...] = ()
    found: tuple[Passage, ...] = ()


@dataclass(frozen=True)
class State:
    """What is known between two turns of the planner."""

    facts: tuple[Fact, ...] = ()
    kept: tuple[Passage, ...] = ()
    candidates: tuple[str, ...] = ()
    """Names of entities to start from; none where the environment is text."""
    turns: tuple[Turn, ...] = ()
    """The dialogue so far, where the planner reads it."""

    def unanswered(self, searches: Sequence[Search]) -> tuple[Search, ...]:
        """Those that have no answer yet."""
        answered = {fact.question for fact in self.facts if fact.answer}
        return tuple(search for search in searches if str(search) not in answered)

    def with_replies(self, replies: Mapping[str, tuple[str, Sequence[Passage]]], max_documents: int) -> State:
        """With the answer to each subquestion, and the passages it rests on."""
        # Passages of several subquestions take turns, so that the limit cuts all of them alike.
        ranks = zip_longest(*(found for _, found in replies.values()))
        kept = merged(p for p in (*self.kept, *chain.from_iterable(ranks)) if p is not None)
        facts = {fact.question: fact for fact in self.facts} | {q: Fact(q, said) for q, (said, _) in replies.items()}
        return replace(self, facts=tuple(facts.values()), kept=tuple(kept.values())[:max_documents])

    def with_turn(self, said: str, replies: Mapping[str, tuple[str, Sequence[Passage]]]) -> State:
        """With a further turn of the dialogue, whose text the planner said."""
        facts = tuple(Fact(question, reply) for question, (reply, _) in replies.items())
        found = tuple(passage for _, passages in replies.values() for passage in passages)
        return replace(self, turns=(*self.turns, Turn(said, facts, found)))

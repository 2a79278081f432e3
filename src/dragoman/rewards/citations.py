"""What an answer rests on, beside what was kept: citations, by words alone, and how long the answer is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.core.types import Passage, Question
from dragoman.rewards.base import Trajectory, reward
from dragoman.rewards.claims import claims, says
from dragoman.rewards.gold import precision, recall


@reward(bounds=(0, 1))
def citation_precision(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """Of the passages that the answer rests on (`cited`) the share that is gold.

    Returns:
        0 where it rests on none; None where no gold is known, or there is no answer.
    """
    known = _cited_and_gold(question, trajectory, passages)
    if known is None:
        return None
    cited, gold = known
    return precision(cited, gold)


@reward(bounds=(0, 1))
def citation_recall(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """Of the gold passages the share that the answer rests on (`cited`); None as for `citation_precision`."""
    known = _cited_and_gold(question, trajectory, passages)
    if known is None:
        return None
    cited, gold = known
    return recall(cited, gold)


@reward(bounds=(0, math.inf))
def answer_words(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """How many words an answer has; None without one. Nuggets are easier to find in long answers (mRAG, section 4.0.3)."""
    return None if trajectory.answer is None else float(len(trajectory.answer.split()))


@reward(bounds=(-1, 0))
def length_penalty(
    question: Question, trajectory: Trajectory, passages: Sequence[Passage], *, words: int = 10
) -> float | None:
    """L(y) = -1 where the answer is longer than so many words, else 0 (MAPS, eq. 3)."""
    if trajectory.answer is None:
        return None
    return -1.0 if len(trajectory.answer.split()) > words else 0.0


def cited(question: str, answer: str, passages: Sequence[Passage]) -> list[str]:
    """The ids of those passages that an answer rests on: each has something that the answer adds to the question.

    That is one of the names and numbers of a claim (see `claims`) or, of one that has none, half of its words.
    """
    added = claims(answer, question) if answer.strip() else []

    def rests_on(passage: Passage) -> bool:
        for parts, hard in added:
            said = sum(says([passage], part) for part in parts)
            if said >= (1 if hard else len(parts) / 2):
                return True
        return False

    return [passage.id for passage in passages if rests_on(passage)]


def _cited_and_gold(
    question: Question, trajectory: Trajectory, passages: Sequence[Passage]
) -> tuple[list[str], tuple[str, ...]] | None:
    if not question.supporting_ids or trajectory.answer is None:
        return None
    return cited(question.question, trajectory.answer, passages), question.supporting_ids

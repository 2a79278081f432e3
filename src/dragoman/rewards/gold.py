"""Rewards by the gold passages that an answer rests on: they need no call of the LLM, and a dataset that names the gold.

They are for shaping, as in `cover_em + 0.3 * gold_recall`. The table reports answers, so what was trained by them is to be
told apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage, Question
from dragoman.rewards.base import Trajectory, reward


@reward(bounds=(0, 1))
def gold_recall(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """The share of the gold passages that were kept; None where no gold is known, or the trajectory failed."""
    found = _found(question, trajectory)
    return None if found is None else found / len(question.supporting_ids)


@reward(bounds=(0, 1))
def gold_precision(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """The share of the kept passages that are gold: 0 where nothing was kept; None as for `gold_recall`."""
    found = _found(question, trajectory)
    return None if found is None else found / max(1, len(trajectory.passages))


def _found(question: Question, trajectory: Trajectory) -> int | None:
    if not question.supporting_ids or trajectory.stop.is_fault:
        return None
    return len(set(question.supporting_ids) & set(trajectory.passages))

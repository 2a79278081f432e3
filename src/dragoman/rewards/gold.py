"""Rewards by the gold passages that an answer rests on: they need no call of the LLM, and a dataset that names the gold.

They are for shaping, as in `cover_em + 0.3 * gold_recall`. The table reports answers, so what was trained by them is to be
told apart. A chunk `ID#N` counts for the passage `ID` that it was cut from.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage, Question
from dragoman.corpus.chunking import gold_id
from dragoman.rewards.base import Trajectory, reward


@reward(bounds=(0, 1), of_answers=False)
def gold_recall(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """The share of the gold passages that were kept; None where no gold is known, or the trajectory failed."""
    return recall(trajectory.passages, question.supporting_ids) if _known(question, trajectory) else None


@reward(bounds=(0, 1), of_answers=False)
def gold_precision(question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> float | None:
    """The share of the kept passages that are gold: 0 where nothing was kept; None as for `gold_recall`."""
    return precision(trajectory.passages, question.supporting_ids) if _known(question, trajectory) else None


def recall(kept: Sequence[str], gold: Sequence[str]) -> float:
    """The share of the gold passages, of which there are some, that are among those that were kept, by their ids."""
    wanted = set(gold)  # a file may name one twice, as HotpotQA does of each supporting sentence
    return len(wanted & {gold_id(id, gold) for id in kept}) / len(wanted)


def precision(kept: Sequence[str], gold: Sequence[str]) -> float:
    """The share of those that were kept that are gold; 0 where nothing was."""
    return sum(gold_id(id, gold) is not None for id in kept) / max(1, len(kept))


def _known(question: Question, trajectory: Trajectory) -> bool:
    return bool(question.supporting_ids) and not trajectory.stop.is_fault

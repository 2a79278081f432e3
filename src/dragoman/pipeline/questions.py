"""Where the questions of a stage come from: a dataset's own, those of stage `synthesize`, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.corpus.loaders import load_questions

SYNTHETIC = Path("results/synthesize")


def question_file(source: str, dataset: str, split: str, trained: str) -> Path:
    """The file of a split: `gold` is the dataset's own, `synthetic` that of stage `synthesize`.

    Raises:
        UserError: there are synthetic questions about the dataset that is trained on (`trained`) alone.
    """
    if source == "synthetic" and dataset != trained:
        raise UserError(f"{SYNTHETIC} has questions about {trained}, not about {dataset}: name a question file instead")
    folder = SYNTHETIC if source == "synthetic" else Path("data") / dataset
    return folder / f"{split}.jsonl"


@dataclass(frozen=True)
class Asked:
    """Questions, the files they are from, and the source of each by its id."""

    questions: list[Question]
    files: tuple[Path, ...]
    sources: dict[str, str]


def load_mixed(files: Sequence[tuple[str, Path]], *, limit: int | None = None) -> Asked:
    """The questions of several (source, file), mixed evenly, so that the first so many have something of each.

    Raises:
        UserError: a file that cannot be read, or two files that give one id to two questions.
    """
    places: list[tuple[float, int, Question]] = []
    sources: dict[str, str] = {}
    for order, (source, path) in enumerate(files):
        questions = load_questions(path, limit=limit)
        for i, question in enumerate(questions):
            if question.id in sources:
                raise UserError(f"{path}: the id {question.id!r} is also that of a question in another file")
            sources[question.id] = source
            places.append(((i + 0.5) / len(questions), order, question))
    mixed = [question for _, _, question in sorted(places, key=lambda place: place[:2])][:limit]
    kept = {question.id: sources[question.id] for question in mixed}
    return Asked(mixed, tuple(path for _, path in files), kept)

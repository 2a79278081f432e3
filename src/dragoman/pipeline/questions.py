"""Questions out of several files, evenly mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.corpus.loaders import load_questions
from dragoman.corpus.triple_passages import of_graph


@dataclass(frozen=True)
class QuestionSet:
    """Questions, the files they are from, and the source of each by its id."""

    questions: list[Question]
    files: tuple[Path, ...]
    sources: dict[str, str]

    def of_graph(self) -> QuestionSet:
        """The same, whose gold passages are triples, whatever text a question was made for."""
        return replace(self, questions=[of_graph(question) for question in self.questions])


def load_mixed(files: Sequence[tuple[str, Path]], *, limit: int | None = None) -> QuestionSet:
    """The questions of several (source, file), mixed so that any beginning has each source in its share.

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
    return QuestionSet(mixed, tuple(path for _, path in files), kept)

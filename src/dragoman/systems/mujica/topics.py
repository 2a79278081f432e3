"""Where the planner starts in a knowledge graph, when the question's gold is known (section 4.1)."""

from __future__ import annotations

from dragoman.core.errors import UserError
from dragoman.core.text import has
from dragoman.core.types import Question


def topic_entities(question: Question) -> tuple[str, ...]:
    """The topic entities of a question: those that its data set names, or else those that its gold triples tell.

    Of the triples these are the ends that the question names, in their order. Where it names none, under the very name, they
    are the subjects to which no triple leads and which are no answer; and where all of those are, the ends that are none.

    Raises:
        UserError: the question has none.
    """
    if question.topics:
        return question.topics
    ends = dict.fromkeys(end for subject, _, obj in question.triples for end in (subject, obj))
    if named := tuple(end for end in ends if has(question.question, end)):
        return named
    reached = {obj for _, _, obj in question.triples} | set(question.answers)
    if roots := tuple(dict.fromkeys(subject for subject, _, _ in question.triples if subject not in reached)):
        return roots
    if others := tuple(end for end in ends if end not in question.answers):
        return others
    raise UserError(
        f"question {question.id}: candidates: gold starts from a question's topic, or from its triples, and this one has "
        "neither; set mujica.candidates: search"
    )

"""A triple as a passage, and back: what a knowledge graph is searched for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dragoman.core.types import Passage, Question, Triple

SEPARATOR = "\t"
"""Between the parts of a triple, in a file of triples and in the id of its passage; and in a query about an entity."""


def triple_passages(triples: Iterable[Triple]) -> list[Passage]:
    """A passage for each triple, in their order: its subject is the title, and relation and object are the text."""
    return [Passage(triple_id(triple), triple[0], f"{triple[1]}: {triple[2]}") for triple in triples]


def triple_id(triple: Triple) -> str:
    """The id of a triple's passage: its line in a file of triples."""
    return SEPARATOR.join(triple)


def triple_of(passage: Passage) -> Triple | None:
    """The triple that a passage stands for; None for a passage of text."""
    parts = passage.id.split(SEPARATOR)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


def of_graph(question: Question) -> Question:
    """The question as a graph is asked it: its gold passages are the triples behind its answer, where these are known."""
    return replace(question, supporting_ids=tuple(map(triple_id, question.triples))) if question.triples else question


def ends(passage: Passage) -> tuple[str, ...]:
    """The entities of a passage: subject and object of a triple, and what anything else is about, by its title."""
    triple = triple_of(passage)
    if triple is None:
        return (passage.title,) if passage.title else ()
    return tuple(dict.fromkeys((triple[0], triple[2])))


def about(entity: str, words: str) -> str:
    """The query for the triples of an entity in a graph, those first that `words` fit."""
    return f"{' '.join(entity.split())}{SEPARATOR}{words}"

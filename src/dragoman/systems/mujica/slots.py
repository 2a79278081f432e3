"""A search of Mujica's planner, and how one of a graph is written."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.corpus.triple_passages import about
from dragoman.systems.grammar import InvalidAction, Line

FOR = " [for] "


@dataclass(frozen=True)
class Search:
    """A subquestion q_i, and in a graph the entity whose triples are to answer it."""

    question: str
    entity: str = ""

    @property
    def query(self) -> str:
        return about(self.entity, self.question) if self.entity else self.question

    def __str__(self) -> str:
        return f"{self.entity}: {self.question}" if self.entity else self.question


@dataclass(frozen=True)
class About:
    """A slot for a search in a graph, as in `Nihonium [for] After which country is it named?`."""

    entity: Line
    question: Line

    @property
    def strict(self) -> str:
        return self.entity.strict + r" \[for\] " + self.question.strict

    @property
    def lenient(self) -> str:
        return self.entity.lenient + r"\[for\]" + self.question.lenient

    def parse(self, text: str) -> Search:
        entity, found, question = text.partition(FOR.strip())
        if not found:
            raise InvalidAction(f"no entity and question with {FOR.strip()} between: {text[:80]!r}")
        return Search(self.question.parse(question), self.entity.parse(entity))

    def render(self, value: Search) -> str:
        return self.entity.render(value.entity) + FOR + self.question.render(value.question)

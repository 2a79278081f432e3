"""What planner and worker of Mujica may say (section 2.2 and appendix G)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.systems.grammar import Form, Indices, Line, OneOf, Several
from dragoman.systems.mujica.slots import About, Search


@dataclass(frozen=True)
class Subquestions:
    """Planner: have workers answer these, none of which depends on another."""

    questions: tuple[str, ...]
    thought: str = ""

    @property
    def searches(self) -> tuple[Search, ...]:
        return tuple(Search(question) for question in self.questions)


@dataclass(frozen=True)
class Searches:
    """The same in a graph (appendix G): each is a question, and the entity whose triples may answer it."""

    searches: tuple[Search, ...]
    thought: str = ""


@dataclass(frozen=True)
class Answer:
    """Planner: what is known is enough, and this is the answer; without one, the LLM is to give it."""

    answer: str = ""
    thought: str = ""


@dataclass(frozen=True)
class Found:
    """Worker: a sentence that answers the subquestion, and the numbers of the passages it rests on, counted from 1.

    It has no sentence where the worker scores passages.
    """

    ids: tuple[int, ...]
    sentence: str = ""
    thought: str = ""


@dataclass(frozen=True)
class Recalled:
    """Worker: no passage answers the subquestion, and this is what it knows itself."""

    sentence: str
    thought: str = ""


@dataclass(frozen=True)
class Nothing:
    """Worker: no passage answers the subquestion."""

    thought: str = ""


def ask(searches: Sequence[Search]) -> Subquestions | Searches:
    """The planner's action: in a graph each search has an entity, and in text none has."""
    if any(search.entity for search in searches):
        return Searches(tuple(searches))
    return Subquestions(tuple(search.question for search in searches))


def planner(question: Line | About, most: int, answer: Line | None, thought: Line | None) -> OneOf:
    """One to `most` subquestions, or the end: with the answer in it, or without one where `answer` is None."""
    head, slots = _thought(thought)
    if isinstance(question, About):
        asked = Form(Searches, head + "[Search] {searches}", searches=Several(question, most, "\n[Search] "), **slots)
    else:
        asked = Form(Subquestions, head + "[Ask] {questions}", questions=Several(question, most, "\n[Ask] "), **slots)
    return OneOf(
        asked,
        Form(Answer, head + "[Answer] {answer}", answer=answer, **slots)
        if answer
        else Form(Answer, head + "[Answer]", **slots),
    )


def conclusion(answer: Line) -> OneOf:
    """The planner's last turn: there are no more subquestions to ask."""
    return OneOf(Form(Answer, "[Answer] {answer}", answer=answer))


def worker(n: int, sentence: Line | None, thought: Line | None, memory: Line | None = None) -> OneOf:
    """A sentence that rests on some of `n` passages, or nothing. Without a sentence where `sentence` is None.

    Args:
        memory: what may be said without a passage to rest on; None where that may not be.
    """
    head, slots = _thought(thought)
    ids = Indices(n, some=True)
    forms = []
    if n:
        forms.append(
            Form(Found, head + "[{ids}] {sentence}", ids=ids, sentence=sentence, **slots)
            if sentence
            else Form(Found, head + "[{ids}]", ids=ids, **slots)
        )
    if memory:
        forms.append(Form(Recalled, head + "[Memory] {sentence}", sentence=memory, **slots))
    return OneOf(*forms, Form(Nothing, head + "[Nothing]", **slots))


def _thought(thought: Line | None) -> tuple[str, dict[str, Line]]:
    """The head of a template with a thought, and its slot."""
    return ("Thought: {thought}\n", {"thought": thought}) if thought else ("", {})

"""What planner and worker of Mujica may say (seed 003, section 2.2 and appendix G)."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.systems.grammar import Form, Indices, Line, OneOf, Several


@dataclass(frozen=True)
class Subquestions:
    """Planner: have workers answer these, none of which depends on another."""

    questions: tuple[str, ...]
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
class Nothing:
    """Worker: no passage answers the subquestion."""

    thought: str = ""


def planner(question: Line, most: int, answer: Line | None, thought: Line | None) -> OneOf:
    """One to `most` subquestions, or the end: with the answer in it, or without one where `answer` is None."""
    head, slots = _thought(thought)
    several = Several(question, most, "\n[Ask] ")
    return OneOf(
        Form(Subquestions, head + "[Ask] {questions}", questions=several, **slots),
        Form(Answer, head + "[Answer] {answer}", answer=answer, **slots)
        if answer
        else Form(Answer, head + "[Answer]", **slots),
    )


def conclusion(answer: Line) -> OneOf:
    """The planner's last turn: there are no more subquestions to ask."""
    return OneOf(Form(Answer, "[Answer] {answer}", answer=answer))


def worker(n: int, sentence: Line | None, thought: Line | None) -> OneOf:
    """A sentence that rests on some of `n` passages, or nothing. Without a sentence where `sentence` is None."""
    head, slots = _thought(thought)
    ids = Indices(n, some=True)
    return OneOf(
        Form(Found, head + "[{ids}] {sentence}", ids=ids, sentence=sentence, **slots)
        if sentence
        else Form(Found, head + "[{ids}]", ids=ids, **slots),
        Form(Nothing, head + "[Nothing]", **slots),
    )


def _thought(thought: Line | None) -> tuple[str, dict[str, Line]]:
    """The head of a template with a thought, and its slot."""
    return ("Thought: {thought}\n", {"thought": thought}) if thought else ("", {})

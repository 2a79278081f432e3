"""What the agents of mRAG may say (section 3.1 and the prompts of appendix D.1): JSON objects, by one definition each.

What every agent knows anyway is not said again: the question, and the response that is validated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dragoman.systems.grammar import JsonForm, JsonOneOf, text_of, tuple_of
from dragoman.systems.mrag.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Coordinator: let the planner list steps."""

    information: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Search:
    """Coordinator: let the searcher look for these aspects."""

    suggestions: tuple[str, ...] = ()
    information: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Look:
    """Coordinator without other agents: search with this query."""

    query: str
    reason: str = ""


@dataclass(frozen=True)
class Summarize:
    """Coordinator: let the summarizer shorten what was gathered."""

    information: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Reason:
    """Coordinator: let the reasoner think about one aspect."""

    aspect: str = ""
    information: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Validate:
    """Coordinator: let the validator check the response."""

    information: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """Coordinator: let the frozen LLM respond, in this manner, and with this in it."""

    guidance: str = ""
    important: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Revise:
    """Coordinator: let the frozen LLM write its response anew."""

    suggestion: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Finish:
    """Coordinator: the last response is the answer."""

    reason: str = ""


CALLS: dict[str, type] = {
    "planner": Plan,
    "searcher": Search,
    "search": Look,
    "summarizer": Summarize,
    "reasoner": Reason,
    "validator": Validate,
    "answerer": Answer,
    "reviser": Revise,
    "finisher": Finish,
}
"""The coordinator's actions, by the agents that they call. `search` is its own, where there are no others."""
AGENTS = {cls: name for name, cls in CALLS.items()}


@dataclass(frozen=True)
class Steps:
    """Planner: what leads to a response, step by step."""

    steps: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """Summarizer: what was gathered, shorter."""

    summary: str


@dataclass(frozen=True)
class Analysis:
    """Reasoner: thoughts about an aspect, one after the other."""

    steps: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Validator: criteria that the question sets, and whether the response is grounded and correct."""

    met: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    supported: bool = True
    supported_feedback: str = ""
    correct: bool = True
    correct_feedback: str = ""

    @property
    def passes(self) -> bool:
        """Whether nothing was found wrong. Of a criterion that is said to be both met and unmet, unmet counts."""
        return self.supported and self.correct and not self.unmet

    @property
    def told(self) -> str:
        """The verdict as the coordinator hears it."""
        verdicts = [
            f"Supported: {_yes(self.supported)} {self.supported_feedback}",
            f"Correct: {_yes(self.correct)} {self.correct_feedback}",
            *(f"Met: {criterion}" for criterion in self.met if criterion not in self.unmet),
            *(f"Not met: {criterion}" for criterion in self.unmet),
        ]
        return "\n".join(line.strip() for line in verdicts)


@dataclass(frozen=True)
class Query:
    """Searcher: search with this; empty for the question."""

    query: str
    reason: str = ""


@dataclass(frozen=True)
class More:
    """Searcher: these documents are relevant; read on with the same query."""

    relevant: tuple[bool, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Change:
    """Searcher: these documents are relevant; search with another query."""

    query: str
    relevant: tuple[bool, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class End:
    """Searcher: these documents are relevant; the search is over."""

    relevant: tuple[bool, ...] = ()
    reason: str = ""


MOVES: dict[type, str] = {More: "same query", Change: "new query", End: "end"}


@dataclass(frozen=True)
class Keep:
    """Searcher at marks: these documents are relevant. What comes next is a decision of its own."""

    relevant: tuple[bool, ...]


@cache
def coordinator(settings: Settings, agents: Sequence[str]) -> JsonOneOf:
    """A call of one of `agents`."""
    line = text_of(settings.question_chars)
    types: dict[str, Any] = dict.fromkeys(("query", "aspect", "guidance", "important", "suggestion"), line)
    types |= {
        "suggestions": _several(settings, settings.question_chars),
        "information": text_of(settings.information_chars),
    }
    left_out = {"information"} if not settings.information_chars else set()
    left_out |= {"guidance", "important"} if settings.answers == "plain" else set()
    return JsonOneOf(*(_form(settings, CALLS[agent], agent, "agent", left_out, types) for agent in agents))


@cache
def query(settings: Settings) -> JsonOneOf:
    """The searcher's first query."""
    return JsonOneOf(_form(settings, Query, "", "next", set(), {"query": text_of(settings.question_chars)}))


@cache
def reading(settings: Settings, moves: Sequence[type], documents: int) -> JsonOneOf:
    """What the searcher says of so many documents, and one of `moves`. At marks it says nothing of them, and moves alone."""
    types: dict[str, Any] = {
        "query": text_of(settings.question_chars),
        "relevant": tuple_of(bool, documents, documents),
    }
    left_out = {"relevant"} if settings.decide == "marks" else set()
    return JsonOneOf(*(_form(settings, move, MOVES[move], "next", left_out, types) for move in moves))


@cache
def selection(documents: int) -> JsonOneOf:
    """Which of so many documents are relevant."""
    return JsonOneOf(JsonForm(Keep, relevant=tuple_of(bool, documents, documents)))


@cache
def planner(settings: Settings) -> JsonOneOf:
    return JsonOneOf(JsonForm(Steps, steps=_several(settings, settings.question_chars)))


@cache
def summarizer(settings: Settings) -> JsonOneOf:
    return JsonOneOf(JsonForm(Summary, summary=text_of(settings.summary_chars)))


@cache
def reasoner(settings: Settings) -> JsonOneOf:
    return JsonOneOf(JsonForm(Analysis, steps=_several(settings, settings.line_chars)))


@cache
def validator(settings: Settings) -> JsonOneOf:
    line, several = text_of(settings.line_chars), _several(settings, settings.line_chars)
    return JsonOneOf(JsonForm(Verdict, met=several, unmet=several, supported_feedback=line, correct_feedback=line))


def _yes(holds: bool) -> str:
    return "yes." if holds else "no."


def _form(settings: Settings, cls: type, kind: str, tag: str, left_out: set[str], types: dict[str, Any]) -> JsonForm:
    """A form with those of `types` that the action has, and a reason where one is to be given."""
    known = set(cls.__dataclass_fields__)  # type: ignore[attr-defined]
    without = (left_out | ({"reason"} if not settings.reason_chars else set())) & known
    own = {name: type_ for name, type_ in types.items() if name in known - without}
    if "reason" not in without:
        own["reason"] = text_of(settings.reason_chars)
    return JsonForm(cls, kind=kind, tag=tag, without=without, **own)


def _several(settings: Settings, chars: int) -> Any:
    return tuple_of(text_of(chars), settings.max_items)

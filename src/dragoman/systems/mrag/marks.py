"""What the agents of mRAG may do, listed: for a proxy that scores its options instead of writing JSON (`decide: marks`).

The question comes first, since a causal model that reads documents before it cannot know what to look for in them. There are
no instructions: a trained proxy does not need them. What has to be phrased is filled in: a plan's steps and queries are names,
suggestions are the plan, and what a reviser is told is what the validator missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.core.types import Passage
from dragoman.systems.mrag import queries
from dragoman.systems.mrag.actions import (
    CALLS,
    Change,
    End,
    Keep,
    Look,
    More,
    Query,
    Reason,
    Revise,
    Search,
    Steps,
    Verdict,
)
from dragoman.systems.mrag.agents import available
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import NOTHING_NEW, Errand, State, Turn
from dragoman.systems.options import Choice, Selection, as_line, known, passage_lines

KINDS: dict[str, tuple[type, ...]] = {
    "coordinator": tuple(CALLS.values()),
    "planner": (Steps,),
    "searcher": (Keep, Change, More, End),
    "validator": (Verdict,),
}
"""The types of the actions that each agent has at marks: what a bias may be for."""
UNSUPPORTED = "Say only what the documents say."
INCORRECT = "It does not answer the question."


def coordinate(settings: Settings, question: str, state: State) -> Choice:
    """The agents that may be called; for a coordinator without any, the queries that may come next."""
    listed: dict[str, Any] = {}
    for agent in available(settings, state):
        if agent == "search":
            found = queries.looks(settings, question, state)
            listed |= {name: Look(query) for name, query in found.items()}
        else:
            listed[agent] = call(settings, question, state, agent)
    return Choice(f"{_known(settings, question, state)}Next:\n", tuple(listed.items()))


def call(settings: Settings, question: str, state: State, agent: str) -> Any:
    """A call of an agent, with nothing in it that a proxy would have to phrase."""
    filled = {
        "searcher": Search(suggestions=state.plan[: settings.max_items]),
        "reasoner": Reason(aspect=queries.whole(settings, question)),
        "reviser": Revise(suggestion=complaint(state.verdict)[: settings.line_chars]),
    }
    return filled[agent] if agent in filled else CALLS[agent]()


def complaint(verdict: Verdict | None) -> str:
    """What a validator found wrong, as a suggestion to a reviser."""
    return UNSUPPORTED if verdict and verdict.correct else INCORRECT


def plan(settings: Settings, question: str, state: State, information: str) -> Selection:
    """What is to be looked for."""
    steps = list(queries.planned(settings, question).items())
    return Selection(
        f"Question: {as_line(question)}\nLook for:\n",
        tuple(name for name, _ in steps),
        make=lambda places: Steps(tuple(steps[place][1] for place in places)),
        places=lambda action: tuple([step for _, step in steps].index(said) for said in action.steps),
    )


def ask(settings: Settings, question: str, errand: Errand) -> Choice:
    """The first query of an errand."""
    listed = queries.of_errand(settings, question, errand)
    first = tuple((name, Query(query)) for name, query in listed.items())
    return Choice(f"{_errand(settings, question, errand)}Search:\n", first or (("the question", Query("")),))


def select(settings: Settings, question: str, errand: Errand, passages: Sequence[Passage]) -> Selection:
    """The documents that were read."""
    return Selection(
        f"Question: {as_line(question)}\nSearched: {as_line(errand.query)}\n",
        passage_lines(passages, settings.proxy_words),
        make=lambda places: Keep(tuple(i in places for i in range(len(passages)))),
        places=lambda action: tuple(i for i, relevant in enumerate(action.relevant) if relevant),
    )


def move(settings: Settings, question: str, errand: Errand) -> Choice:
    """Whether to read on, with the same query or another."""
    moves = queries.moves(settings, question, errand)
    other = queries.of_errand(settings, question, errand) if Change in moves else {}
    listed: dict[str, Any] = {name: Change(query) for name, query in other.items()}
    listed |= {queries.AGAIN: More()} if More in moves else {}
    listed |= {queries.END: End()}
    searched = f"Searched: {as_line(errand.query)}\n"
    return Choice(f"{_errand(settings, question, errand)}{searched}Next:\n", tuple(listed.items()))


def validate(settings: Settings, question: str, state: State, information: str) -> Selection:
    """What holds of the response."""
    return Selection(
        f"{_known(settings, question, state)}Which holds:\n",
        ("the facts known say so", "it answers the question"),
        make=lambda places: Verdict(supported=0 in places, correct=1 in places),
        places=lambda action: tuple(i for i, holds in enumerate((action.supported, action.correct)) if holds),
    )


def _known(settings: Settings, question: str, state: State) -> str:
    """What the coordinator and the validator know."""
    verdict = state.verdict
    before = "" if state.read == state.documents else " (before the last documents)"
    checked = f"Checked: {'good' if verdict.passes else complaint(verdict)}\n" if verdict else ""
    return (
        f"Question: {as_line(question)}\n"
        f"Known:\n{known(state.documents, settings.proxy_words)}"
        + "".join(f"{as_line(note)}\n" for note in state.notes)
        + (f"Plan: {as_line('; '.join(state.plan))}\n" if state.plan else "")
        + (f"Called: {', '.join(map(_called, state.turns))}\n" if state.turns else "")
        + (f"Response{before}: {as_line(state.response)}\n" if state.response else "")
        + checked
    )


def _called(turn: Turn) -> str:
    return f"{turn.agent} (nothing new)" if turn.heard == NOTHING_NEW else turn.agent


def _errand(settings: Settings, question: str, errand: Errand) -> str:
    return f"Question: {as_line(question)}\nKnown:\n{known(errand.kept, settings.proxy_words)}"

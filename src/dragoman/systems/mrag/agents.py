"""Which agents the coordinator may call in a state, and what it is told of each."""

from __future__ import annotations

import json

from dragoman.systems.grammar import JsonForm
from dragoman.systems.mrag import actions
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import State

OPTIONAL = ("planner", "summarizer", "reasoner", "validator", "reviser")
"""Agents that a setting of the same name takes away."""
DESCRIPTIONS = {
    "planner": "lists the steps to a response; best called first",
    "searcher": "looks for what you suggest, reads documents, and returns the relevant ones",
    "search": "finds the documents that fit your query best; the same query again finds the next ones",
    "summarizer": "shortens what was gathered",
    "reasoner": "thinks about one aspect of what was gathered",
    "validator": "checks whether the response is supported, correct, and as the question wants it",
    "answerer": "writes a response from what was gathered",
    "reviser": "writes the response anew, as you suggest",
    "finisher": "ends the task with the last response",
}


def team(settings: Settings) -> tuple[str, ...]:
    """The agents that there are, the coordinator's own search among them."""
    if settings.agents == "single":
        return ("search", "answerer", *(["reviser"] if settings.reviser else []), "finisher")
    away = {name for name in OPTIONAL if not getattr(settings, name)} | {"search"}
    return tuple(name for name in actions.CALLS if name not in away)


def available(settings: Settings, state: State) -> tuple[str, ...]:
    """Those that make sense in a state.

    Nothing is summarized or thought about before there are documents. A response is needed to be checked, revised or final,
    and it is checked once.
    """
    full = len(state.documents) >= settings.max_documents
    missing = {"searcher", "search"} if full else set()
    missing |= set() if state.documents else {"summarizer", "reasoner"}
    missing |= set() if state.response else {"validator", "reviser", "finisher"}
    missing |= {"validator"} if state.verdict else set()
    return tuple(name for name in team(settings) if name not in missing)


def described(settings: Settings) -> str:
    """Each agent with the call that it takes."""
    names = team(settings)
    forms = {form.kind: form for form in actions.coordinator(settings, names).forms if isinstance(form, JsonForm)}
    return "\n".join(f"{_shape(forms[name])} {DESCRIPTIONS[name]}." for name in names)


def _shape(form: JsonForm) -> str:
    """An action with dots for what is to be written."""
    fields = [name for name in form.model.model_fields if name != form.tag]
    return json.dumps({form.tag: form.kind} | {name: ["..."] if name == "suggestions" else "..." for name in fields})

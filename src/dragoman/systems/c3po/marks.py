"""What the agents of C-3PO may do, listed: for a proxy that scores its options instead of writing (`decide: marks`).

The question comes first, since a causal model that reads passages before it cannot know what to look for in them. There
are no instructions: a trained proxy does not need them, and they would be most of what it reads. `prompts: full` has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage
from dragoman.systems.c3po import queries
from dragoman.systems.c3po.actions import Answer, Keep, NoRetrieval, Plan, Search
from dragoman.systems.c3po.settings import Settings
from dragoman.systems.options import Choice, Selection, as_line, known, passage_lines

KINDS = {"router": (NoRetrieval, Search, Plan), "filter": (Keep,), "decide": (Search, Answer)}
"""The types of the actions that each agent has at marks: what a bias may be for."""
INSTRUCTIONS = {
    "router": "Choose how a question is handled: the language model answers from memory, or one search will find the "
    "answer, or a plan of several searches is needed.\n",
    "filter": "Keep the search results that help to answer the question.\n",
    "decide": "Decide which search comes next, or that the facts suffice for the answer.\n",
}
"""What stands before a prompt that is not brief."""


def route(settings: Settings, question: str) -> Choice:
    """The router's strategies, or the one that the settings hold it to."""
    strategies = {
        "NoRetrieval": ("from memory", NoRetrieval()),
        "Search": ("search", Search(queries.whole(settings, question))),
        "Plan": ("plan", Plan()),
    }
    allowed = [option for name, option in strategies.items() if settings.strategy in ("", name)]
    return Choice(f"{_head(settings, 'router', question)}Strategy:\n", tuple(allowed))


def select(settings: Settings, question: str, objective: str, passages: Sequence[Passage]) -> Selection:
    """The passages found. `objective` is what was searched for, where that is not the question."""
    searched = f"Searched: {as_line(objective)}\n" if objective else ""
    return Selection(
        _head(settings, "filter", question) + searched,
        passage_lines(passages, settings.filter_words or settings.proxy_words, _focus(settings, question)),
        make=lambda places: Keep(tuple(place + 1 for place in places)),
        places=lambda action: tuple(i - 1 for i in action.ids),
    )


def decide(settings: Settings, question: str, roadmap: str, kept: Sequence[Passage], asked: Sequence[str]) -> Choice:
    """The searches that may come next, and the answer."""
    listed = queries.named_candidates(settings, question, kept, asked)
    plan = f"Plan: {as_line(roadmap)}\n" if roadmap else ""
    before = "; ".join(as_line(queries.briefly(settings, question, query)) for query in asked)
    searched = f"Searched: {before}\n" if before else ""
    facts = known(kept, settings.proxy_words, _focus(settings, question))
    actions = (*((name, Search(query)) for name, query in listed.items()), (queries.END, Answer()))
    return Choice(f"{_head(settings, 'decide', question)}{plan}{searched}Known:\n{facts}Next:\n", actions)


def _focus(settings: Settings, question: str) -> str:
    """What passages are read for; empty where their first words are."""
    return question if settings.view == "focused" else ""


def _head(settings: Settings, role: str, question: str) -> str:
    rewritten = (settings.rewritten or {}).get(role)
    if rewritten is not None:
        return f"{rewritten.strip()}\nQuestion: {as_line(question)}\n"
    instructions = INSTRUCTIONS[role] if settings.prompts == "full" else ""
    return f"{instructions}Question: {as_line(question)}\n"

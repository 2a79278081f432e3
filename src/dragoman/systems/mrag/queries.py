"""What may be searched for, listed: names in the question and in what was kept. What an oracle asks, and a proxy at marks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.core.text import names, owner
from dragoman.core.types import Passage
from dragoman.systems.grammar import plain
from dragoman.systems.mrag.actions import CALLS, Change, End, More
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import Errand, State
from dragoman.systems.names import ITSELF, QUESTION_RUN, copied, searches, unasked
from dragoman.systems.options import by_line

AGAIN = "the same again"
"""What the next page of a search is called in a list."""
END = "end"


def whole(settings: Settings, question: str) -> str:
    """The question as a query."""
    return copied(plain(question, len(question)), settings.question_chars, QUESTION_RUN) or ITSELF


def candidates(
    settings: Settings, question: str, kept: Sequence[Passage], asked: Collection[str], plan: Sequence[str] = ()
) -> dict[str, str]:
    """What each query is called in a list, and the query: at most `max_candidates` that were not asked, planned ones first."""
    listed = by_line(searches(question, whole(settings, question), kept, plan), AGAIN, END, *CALLS)
    plains = {name: plain(query, len(query)) for name, query in listed.items()}
    return unasked(plains, asked, settings.line_chars, settings.max_candidates)


def of_errand(settings: Settings, question: str, errand: Errand) -> dict[str, str]:
    """The candidates of the searcher."""
    return candidates(settings, question, errand.kept, errand.asked, errand.suggestions)


def looks(settings: Settings, question: str, state: State) -> dict[str, str]:
    """The candidates of a coordinator without other agents: it may also read on with its last query."""
    listed = candidates(settings, question, state.documents, state.asked)
    may_go_on = state.asked and state.asked.count(state.asked[-1]) < settings.max_pages
    return {**listed, AGAIN: state.asked[-1]} if may_go_on else listed


def planned(settings: Settings, question: str) -> dict[str, str]:
    """What the steps of a plan may be, where they are listed: the question and the names in it, by what they are called."""
    named = by_line({name: plain(name, settings.line_chars) for name in map(owner, names(question))}, ITSELF)
    steps = {ITSELF: whole(settings, question)} | named
    return {name: step for name, step in list(steps.items())[: settings.max_items] if step}


def moves(settings: Settings, question: str, errand: Errand) -> tuple[type, ...]:
    """What the searcher may do after it has read: read on with its query, change it, end."""
    may_read = errand.reads < settings.max_reads and len(errand.kept) < settings.max_documents
    more = may_read and not errand.exhausted and errand.pages(errand.query) < settings.max_pages
    change = may_read and (settings.decide == "text" or bool(of_errand(settings, question, errand)))
    return tuple(move for move, allowed in ((More, more), (Change, change), (End, True)) if allowed)

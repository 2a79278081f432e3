"""The agents of mRAG (section 3.1, appendix D.1): what each is shown, and what it may say.

Coordinator and searcher go on in one dialogue. So each has a role for its first message and one for those that follow, of
one name and one policy.
"""

from __future__ import annotations

from functools import partial

from dragoman.systems.base import Role
from dragoman.systems.mrag import actions, marks, oracle, queries
from dragoman.systems.mrag.agents import available, described
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import State
from dragoman.systems.options import at_marks
from dragoman.systems.prompts import Messages, load, number


def coordinator(settings: Settings, *, first: bool) -> Role:
    """Calls an agent. Its state is the question, and what was gathered."""
    single = settings.agents == "single"
    return Role(
        "coordinator",
        load(__package__, ("single" if single else "coordinator") if first else "coordinator_next"),
        grammar=lambda question, state: actions.coordinator(settings, available(settings, state)),
        view=lambda question, state: {
            "question": question,
            "agents": described(settings),
            "output": state.turns[-1].heard if state.turns else "",
            "now": ", ".join(available(settings, state)),
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.coordinate, settings),
        options=at_marks(settings, "coordinator", marks.coordinate),
    )


def _why(settings: Settings) -> str:
    """The end of a JSON object in a prompt, where a reason is to be given."""
    return ', "reason": "..."' if settings.reason_chars else ""


def searcher_query(settings: Settings) -> Role:
    """Phrases the first query of an errand."""
    return Role(
        "searcher",
        load(__package__, "searcher"),
        grammar=lambda question, errand: actions.query(settings),
        view=lambda question, errand: {
            "question": question,
            "information": errand.information,
            "suggestions": "; ".join(errand.suggestions) or "(none)",
            "why": _why(settings),
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.ask, settings),
        options=at_marks(settings, "searcher", marks.ask),
    )


def searcher_read(settings: Settings) -> Role:
    """Says which documents are relevant, and what comes next."""
    return Role(
        "searcher",
        load(__package__, "searcher_next"),
        grammar=lambda question, errand, passages: actions.reading(
            settings, queries.moves(settings, question, errand), len(passages)
        ),
        view=lambda question, errand, passages: {
            "query": errand.query,
            "passages": number(passages, settings.proxy_words),
            "count": str(len(passages)),
            "now": ", ".join(actions.MOVES[move] for move in queries.moves(settings, question, errand)),
            "why": _why(settings),
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.read, settings),
    )


def searcher_select(settings: Settings) -> Role:
    """At marks: says which documents are relevant."""
    return Role(
        "searcher",
        load(__package__, "searcher_next"),
        grammar=lambda question, errand, passages: actions.selection(len(passages)),
        view=searcher_read(settings).view,
        max_tokens=settings.action_tokens,
        oracle=oracle.select,
        options=at_marks(settings, "searcher", marks.select),
    )


def searcher_move(settings: Settings) -> Role:
    """At marks: says what comes next."""
    return Role(
        "searcher",
        load(__package__, "searcher_next"),
        grammar=lambda question, errand: actions.reading(settings, queries.moves(settings, question, errand), 0),
        view=lambda question, errand: searcher_read(settings).view(question=question, errand=errand, passages=()),
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.move, settings),
        options=at_marks(settings, "searcher", marks.move),
    )


def planner(settings: Settings) -> Role:
    """Lists steps. Its state, as that of the agents below, is what was gathered, and the information that it was given."""
    return Role(
        "planner",
        load(__package__, "planner"),
        grammar=lambda question, state, information: actions.planner(settings),
        view=lambda question, state, information: {
            "question": question,
            "information": information,
            "most": str(settings.max_items),
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.plan, settings),
        options=at_marks(settings, "planner", marks.plan),
    )


def summarizer(settings: Settings) -> Role:
    return Role(
        "summarizer",
        load(__package__, "summarizer"),
        grammar=lambda question, state, information: actions.summarizer(settings),
        view=lambda question, state, information: {"question": question, "information": information},
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.summarize, settings),
    )


def reasoner(settings: Settings) -> Role:
    return Role(
        "reasoner",
        load(__package__, "reasoner"),
        grammar=lambda question, state, information, aspect: actions.reasoner(settings),
        view=lambda question, state, information, aspect: {
            "question": question,
            "information": information,
            "aspect": aspect or question,
            "most": str(settings.max_items),
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.reason, settings),
    )


def validator(settings: Settings) -> Role:
    return Role(
        "validator",
        load(__package__, "validator"),
        grammar=lambda question, state, information: actions.validator(settings),
        view=lambda question, state, information: {
            "question": question,
            "information": information,
            "response": state.response,
        },
        max_tokens=settings.action_tokens,
        oracle=partial(oracle.validate, settings),
        options=at_marks(settings, "validator", marks.validate),
    )


def earlier(opening: Role, question: str, state: State) -> Messages:
    """The coordinator's dialogue up to the agent output that it is shown next; empty before the first."""
    if not state.turns:
        return ()
    said = [message for turn in state.turns for message in (("assistant", turn.said), ("user", turn.heard))]
    return (*opening.messages({"question": question, "state": State()}), *said[:-1])

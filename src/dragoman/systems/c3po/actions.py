"""What the three agents of C-3PO may say (Guo et al. 2025, section 4.1 and appendix B.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.systems.grammar import Form, Indices, Line, OneOf, Titles

ALL = ("all",)
"""What no passage may be called where the filter selects by title."""


@dataclass(frozen=True)
class NoRetrieval:
    """Router: the LLM knows the answer."""


@dataclass(frozen=True)
class Search:
    """Router or decision maker: look for passages with this query."""

    query: str
    thought: str = ""


@dataclass(frozen=True)
class Plan:
    """Router: the question needs several steps."""


@dataclass(frozen=True)
class Keep:
    """Filter: keep the passages with these numbers, counted from 1; none is allowed."""

    ids: tuple[int, ...]
    thought: str = ""


@dataclass(frozen=True)
class KeepAll:
    """Filter: keep every passage, which makes a search plain RAG."""

    thought: str = ""


@dataclass(frozen=True)
class Answer:
    """Decision maker: what has been kept is enough, let the LLM answer."""

    thought: str = ""


def router(queries: Sequence[Line], only: str = "") -> OneOf:
    """The router's choice of strategy, or the one kind of it that `only` names. There may be several kinds of query."""
    forms = {
        "NoRetrieval": [Form(NoRetrieval, "[No Retrieval]")],
        "Search": [Form(Search, "[Retrieval] {query}", query=query) for query in queries],
        "Plan": [Form(Plan, "[Planning]")],
    }
    return OneOf(*(form for name, kind in forms.items() if only in ("", name) for form in kind))


def information_filter(ids: Indices | Titles, thought: Line | None) -> OneOf:
    if thought is None:
        return OneOf(Form(KeepAll, "Action: [all]"), Form(Keep, "Action: [{ids}]", ids=ids))
    return OneOf(
        Form(KeepAll, "Thought: {thought}\nAction: [all]", thought=thought),
        Form(Keep, "Thought: {thought}\nAction: [{ids}]", thought=thought, ids=ids),
    )


def decision_maker(queries: Sequence[Line], thought: Line | None) -> OneOf:
    """Another search or the answer. There may be several kinds of query."""
    if thought is None:
        return OneOf(
            *(Form(Search, "Action: [Retrieval] {query}", query=query) for query in queries),
            Form(Answer, "Action: [LLM]"),
        )
    return OneOf(
        *(Form(Search, "Thought: {thought}\nAction: [Retrieval] {query}", thought=thought, query=q) for q in queries),
        Form(Answer, "Thought: {thought}\nAction: [LLM]", thought=thought),
    )

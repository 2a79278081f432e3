"""What a query of C-3PO may be, by the setting `queries`.

- `free`: any line of text, as in the paper. The other modes are for models too small to phrase a query.
- `span`: the question, copied. After the first search also a run of words of the question or of a kept passage.
- `phrase`: as `span`, with a run of words of the question from the first search on.
- `names`: the question, called `the question`. Under a plan also the names in it and in kept passages, each once.
  When all have been asked, what is left is the question, which then gives the next page of its search.

Where the next query is chosen from a list and not written, `candidates` makes the list, whatever the mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage
from dragoman.systems import names
from dragoman.systems.c3po.settings import Settings
from dragoman.systems.grammar import Alias, Line, Span
from dragoman.systems.names import (
    ITSELF,
    QUESTION_CHARS,
    QUESTION_RUN,
    WHOLE_RUN,
    called,
    copied,
    searches,
    unasked,
)
from dragoman.systems.options import by_line
from dragoman.systems.prompts import one_line

END = "answer"
"""What the end of the searches is called in a list."""
SPAN_RUN = 6
"""The longest run of words."""
SPAN_WORDS = 40
"""Runs are taken from so many words of a passage."""


def whole(settings: Settings, question: str) -> str:
    """The question as a query. At marks there is always one, since it is among the options."""
    named = settings.decide == "marks" or settings.queries == "names"
    query = copied(question, QUESTION_CHARS if named else settings.query_chars, QUESTION_RUN)
    return query or ITSELF if settings.decide == "marks" else query


def first_queries(settings: Settings, question: str) -> list[Line]:
    """The kinds of query without a plan."""
    if settings.queries == "free":
        return [Line(_chars(settings))]
    if settings.queries == "names" and (query := whole(settings, question)):
        return [Alias(settings.query_chars, name=ITSELF, stands_for=query)]
    itself = Span(_chars(settings), (_itself(settings, question),))
    runs = Span(settings.query_chars, ((question, 1, SPAN_RUN),))
    return [itself, runs] if settings.queries == "phrase" else [itself]


def next_queries(settings: Settings, question: str, kept: Sequence[Passage], asked: Sequence[str]) -> list[Line]:
    """The kinds of query under a plan, where `kept` has been found by the queries `asked`."""
    if settings.queries == "names":
        query = whole(settings, question)
        itself = first_queries(settings, question) if query and query not in asked else []
        new = [name for name in known_names(settings, question, kept) if name not in (*asked, query)]
        named = [Span(settings.query_chars, tuple((name, WHOLE_RUN, WHOLE_RUN) for name in new))] if new else []
        return [*itself, *named] or first_queries(settings, question)
    if settings.queries == "free" or (settings.queries == "span" and not kept):
        return first_queries(settings, question)
    texts = (question, *(one_line(passage, SPAN_WORDS) for passage in kept))
    sources = (_itself(settings, question), *((text, 1, SPAN_RUN) for text in texts))
    return [Span(_chars(settings), sources)]


def known_names(settings: Settings, question: str, kept: Sequence[Passage]) -> list[str]:
    """The names in the question, and those in the kept passages that are not."""
    return names.known_names(
        question,
        kept,
        passage_words=settings.proxy_words,
        chars=settings.query_chars,
        as_written=settings.queries in ("span", "phrase"),
    )


def candidates(settings: Settings, question: str, kept: Sequence[Passage], asked: Sequence[str]) -> list[str]:
    """The queries among which the next search is chosen, likely ones first, each once and none of `asked`.

    They are at most `settings.max_candidates`; there may be none.
    """
    return list(named_candidates(settings, question, kept, asked).values())


def named_candidates(
    settings: Settings, question: str, kept: Sequence[Passage], asked: Sequence[str]
) -> dict[str, str]:
    """What each query of `candidates` is called in a list, and the query."""
    queries = by_line(searches(question, whole(settings, question), kept), END)
    return unasked(queries, asked, settings.query_chars, settings.max_candidates)


def briefly(settings: Settings, question: str, query: str) -> str:
    """What a query that was asked is called beside a list."""
    return ITSELF if query == whole(settings, question) else called(query)


def shown(settings: Settings, query: str, question: str) -> str:
    """A query as the decision maker reads of it later."""
    return ITSELF if settings.queries == "names" and query == whole(settings, question) else query


def objective(settings: Settings, query: str, thought: str, question: str) -> str:
    """What a search under a plan is for: the thought, or else the query where it is not the question itself."""
    return thought or ("" if query == whole(settings, question) else query)


def _itself(settings: Settings, question: str) -> tuple[str, int, int]:
    """The question as the source of a single run."""
    return whole(settings, question), QUESTION_RUN, QUESTION_RUN


def _chars(settings: Settings) -> int:
    """Most characters of a query that can be the question. At marks it is only rendered."""
    return QUESTION_CHARS if settings.decide == "marks" else settings.query_chars

"""What queries and answers of MAPS may be, by the setting `queries`.

- `free`: a few keywords, and an answer of one line, as in the paper.
- `span`: for models too small to phrase any. Both are words copied from the question and from the pool.

Where the next query is chosen from a list and not written, `candidates` makes the list, whatever the mode.
"""

from __future__ import annotations

from dragoman.systems.grammar import Keywords, Line, Span
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.names import ITSELF, WHOLE_RUN, copied, known_names, searches, unasked
from dragoman.systems.options import by_line
from dragoman.systems.prompts import one_line

SPAN_RUN = 6
"""The longest run of words."""


def query(settings: Settings, question: str, pool: Pool) -> Line:
    """The slot of a query. One that was listed is only rendered, so any line will do."""
    if settings.decide == "marks":
        return Line(settings.query_chars)
    if settings.queries == "free":
        return Keywords(settings.query_chars, most=settings.query_words)
    return Span(settings.query_chars, ((question, WHOLE_RUN, WHOLE_RUN), *_runs(settings, question, pool)))


def answer(settings: Settings, question: str, pool: Pool) -> Line:
    """The slot of an answer."""
    if settings.queries == "free":
        return Line(settings.answer_chars)
    choices = (("yes", 1, 1), ("no", 1, 1))
    return Span(settings.answer_chars, (*choices, *_runs(settings, question, pool)))


def candidates(settings: Settings, question: str, pool: Pool) -> dict[str, str]:
    """What each query is called in a list, and the query: at most `max_candidates` that were not asked.

    Where nothing is left to ask there is one, the question, which has been asked and ends the search.
    """
    whole = copied(question, settings.query_chars)
    listed = by_line(searches(question, whole, pool.passages))
    new = unasked(listed, [whole, *pool.queries], settings.query_chars, settings.max_candidates)
    return new or {ITSELF: whole or ITSELF}


def names(settings: Settings, question: str, pool: Pool) -> list[str]:
    """The names in the question and in the pool that were not asked for: what a query that is written may be copied from."""
    known = known_names(question, pool.passages, passage_words=settings.proxy_words, chars=settings.query_chars)
    return [name for name in known if not pool.has_asked(name)]


def _runs(settings: Settings, question: str, pool: Pool) -> list[tuple[str, int, int]]:
    texts = (question, *(one_line(passage, settings.proxy_words) for passage in pool.passages))
    return [(text, 1, SPAN_RUN) for text in texts]

"""What queries and answers of MAPS may be, by the setting `queries`.

- `free`: a few keywords, and an answer of one line, as in the paper.
- `span`: for models too small to phrase any. Both are words copied from the question and from the pool.

Where they are chosen from a list and not written, `candidates` and `answers` make the list, whatever the mode.
"""

from __future__ import annotations

from itertools import islice

from dragoman.core.text import figures, owner
from dragoman.core.text import names as found_names
from dragoman.systems.grammar import Keywords, Line, Span
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.names import ITSELF, QUESTION_CHARS, QUESTION_RUN, copied, known_names, searches, unasked
from dragoman.systems.options import by_line
from dragoman.systems.prompts import one_line

YES_OR_NO = ("yes", "no")
SPAN_RUN = 6
"""The longest run of words."""


def whole(settings: Settings, question: str) -> str:
    """The question as a query."""
    return copied(question, _chars(settings), QUESTION_RUN)


def query(settings: Settings, question: str, pool: Pool) -> Line:
    """The slot of a query. One that was listed is only rendered, so any line will do."""
    if settings.decide == "marks":
        return Line(_chars(settings))
    if settings.queries == "free":
        return Keywords(settings.query_chars, most=settings.query_words)
    itself = (whole(settings, question), QUESTION_RUN, QUESTION_RUN)
    return Span(settings.query_chars, (itself, *_runs(settings, question, pool)))


def answer(settings: Settings, question: str, pool: Pool) -> Line:
    """The slot of an answer. One that was listed is only rendered."""
    if settings.queries == "free" or settings.decide == "marks":
        return Line(settings.answer_chars)
    choices = tuple((word, 1, 1) for word in YES_OR_NO)
    return Span(settings.answer_chars, (*choices, *_runs(settings, question, pool)))


def candidates(settings: Settings, question: str, pool: Pool) -> dict[str, str]:
    """What each query is called in a list, and the query: at most `max_candidates` that were not asked.

    Where nothing is left to ask there is one, the question, which has been asked and ends the search.
    """
    itself = whole(settings, question)
    listed = by_line(searches(question, itself, pool.passages))
    new = unasked(listed, [itself, *pool.queries], settings.query_chars, settings.max_candidates)
    return new or {ITSELF: itself or ITSELF}


def answers(settings: Settings, question: str, pool: Pool) -> dict[str, str]:
    """What each answer is called in a list, and the answer: yes, no, and the first of the names, dates and numbers that were read.

    They are those of the question, then of each passage in turn.
    """
    read = [one_line(passage, settings.proxy_words) for passage in pool.passages]
    named = [name for text in (question, *read) for name in (*map(owner, found_names(text)), *figures(text))]
    short = (name for name in dict.fromkeys(named) if len(name) <= settings.answer_chars)
    return by_line({name: name for name in (*YES_OR_NO, *islice(short, settings.max_answers))})


def names(settings: Settings, question: str, pool: Pool) -> list[str]:
    """The names in the question and in the pool that were not asked for: what a query that is written may be copied from."""
    known = known_names(
        question,
        pool.passages,
        passage_words=settings.proxy_words,
        chars=settings.query_chars,
        as_written=settings.queries == "span",
    )
    return [name for name in known if not pool.has_asked(name)]


def _chars(settings: Settings) -> int:
    """Most characters of the question as a query. At marks it is not written, and costs no token."""
    return QUESTION_CHARS if settings.decide == "marks" else settings.query_chars


def _runs(settings: Settings, question: str, pool: Pool) -> list[tuple[str, int, int]]:
    texts = (question, *(one_line(passage, settings.proxy_words) for passage in pool.passages))
    return [(text, 1, SPAN_RUN) for text in texts]

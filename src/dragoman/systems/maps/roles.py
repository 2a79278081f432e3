"""The agents of MAPS (section 3, appendix A.1): what each is shown, and what it may say. The state is the same for all."""

from __future__ import annotations

from functools import partial

from dragoman.systems.base import Role
from dragoman.systems.maps import actions, marks, oracle, queries
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.options import at_marks
from dragoman.systems.prompts import load, number

VERDICT_TOKENS = 16


def query_extension(settings: Settings) -> Role:
    """Asks for what is missing in the pool."""
    return Role(
        "query",
        load(__package__, "query"),
        grammar=lambda question, pool: actions.extension(queries.query(settings, question, pool)),
        view=lambda question, pool: _view(settings, question, pool) | {"words": str(settings.query_words)},
        max_tokens=settings.query_tokens,
        shots=settings.shots,
        stop=("\n",),
        oracle=partial(oracle.extend, settings),
        options=at_marks(settings, "query", marks.extend),
    )


def judge(settings: Settings) -> Role:
    """Says whether the pool suffices."""
    return Role(
        "judge",
        load(__package__, "judge"),
        grammar=lambda question, pool: actions.judge(),
        view=partial(_view, settings),
        max_tokens=VERDICT_TOKENS,
        shots=settings.shots,
        oracle=oracle.judge,
        options=at_marks(settings, "judge", marks.judge),
    )


def answer(settings: Settings) -> Role:
    """Answers from the pool, where the setting `answers` is `agent`."""
    return Role(
        "answer",
        load(__package__, "answer"),
        grammar=lambda question, pool: actions.answer(queries.answer(settings, question, pool)),
        view=partial(_view, settings),
        max_tokens=settings.answer_tokens,
        shots=settings.shots,
        stop=("\n",),
        oracle=partial(oracle.answer, settings),
        options=at_marks(settings, "answer", marks.answer),
    )


def pool_text(pool: Pool, words: int) -> str:
    """The queries of a pool, each with its passages, which are cut to so many words."""
    return "\n\n".join(f"Search: {search.query}\n{number(search.passages, words)}" for search in pool.searches)


def _view(settings: Settings, question: str, pool: Pool) -> dict[str, str]:
    return {"question": question, "pool": pool_text(pool, settings.proxy_words)}

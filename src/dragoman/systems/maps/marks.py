"""What the agents may do, listed: for a proxy that scores its options (`decide: marks`).

The question comes first, since a causal model that reads passages before it cannot know what to look for in them. There are
no instructions: a trained proxy does not need them.
"""

from __future__ import annotations

from dragoman.systems.maps import queries
from dragoman.systems.maps.actions import Answer, Extend, Insufficient, Sufficient
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.options import Choice, as_line, known

KINDS = {"judge": (Sufficient, Insufficient)}
"""The types of the actions that each agent has at marks: what a bias may be for."""


def judge(settings: Settings, question: str, pool: Pool) -> Choice:
    """The two verdicts."""
    return Choice(
        f"{_known(settings, question, pool)}Verdict:\n",
        (("sufficient", Sufficient()), ("insufficient", Insufficient())),
    )


def extend(settings: Settings, question: str, pool: Pool) -> Choice:
    """The queries that may come next: the names and entities that were found, and those of the question."""
    listed = queries.candidates(settings, question, pool)
    actions = tuple((name, Extend(query)) for name, query in listed.items())
    return Choice(f"{_known(settings, question, pool)}Next:\n", actions)


def answer(settings: Settings, question: str, pool: Pool) -> Choice:
    """The names, dates and numbers that were read, and yes and no."""
    listed = queries.answers(settings, question, pool)
    actions = tuple((name, Answer(text)) for name, text in listed.items())
    return Choice(f"{_known(settings, question, pool)}Answer:\n", actions)


def _known(settings: Settings, question: str, pool: Pool) -> str:
    return f"Question: {as_line(question)}\nKnown:\n{known(pool.passages, settings.proxy_words)}"

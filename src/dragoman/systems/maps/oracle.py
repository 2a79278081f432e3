"""What an oracle does in MAPS: it knows gold passages and answers, and acts within the grammar of each agent."""

from __future__ import annotations

from dragoman.core.text import has_answer
from dragoman.systems.base import Gold
from dragoman.systems.grammar import can_say
from dragoman.systems.maps import queries
from dragoman.systems.maps.actions import Answer, Extend, Insufficient, Sufficient
from dragoman.systems.maps.pool import Pool
from dragoman.systems.maps.settings import Settings
from dragoman.systems.names import copied


async def judge(gold: Gold, question: str, pool: Pool) -> list[Sufficient | Insufficient]:
    """Sufficient when all gold passages are in the pool."""
    return [Insufficient() if gold.missing(pool.passages) else Sufficient()]


async def extend(settings: Settings, gold: Gold, question: str, pool: Pool) -> list[Extend]:
    """The queries that find first what is missing; any, where none finds it. One that is written is the first of these."""
    missing = gold.missing(pool.passages)
    if settings.decide == "marks":
        new = list(queries.candidates(settings, question, pool).values())
        return [Extend(query) for query in await gold.finding_first(new, settings.k, missing) or new]
    line = queries.query(settings, question, pool)
    new = [name for name in queries.names(settings, question, pool) if can_say(line, name)]
    best = await gold.finding_first(new, settings.k, missing)
    whole = queries.whole(settings, question)
    repeated = line.parse(whole) if whole else ""  # ends the search, or nearly so
    return [Extend(query) for query in (*best, *new, repeated) if can_say(line, query)][:1]


async def answer(settings: Settings, gold: Gold, question: str, pool: Pool) -> list[Answer]:
    """The shortest gold answer that can be said; one that is wrong, and earns nothing, where none can.

    Of listed answers all that are right. Where none is, all: each is as wrong as the others, and nothing is to be learnt.
    """
    if settings.decide == "marks":
        listed = list(queries.answers(settings, question, pool).values())
        right = [text for text in listed if any(has_answer(text, a) and has_answer(a, text) for a in gold.answers)]
        return [Answer(text) for text in right or listed]
    line = queries.answer(settings, question, pool)
    right = sorted((copied(text, settings.answer_chars) for text in gold.answers), key=len)
    texts = [text.lower() if text.lower() in ("yes", "no") else text for text in right]
    return [Answer(text) for text in (*texts, "no", "yes") if can_say(line, text)][:1]

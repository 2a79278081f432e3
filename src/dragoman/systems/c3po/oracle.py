"""What an oracle does in C-3PO: it knows the gold passages, and acts within the grammar of each agent."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage
from dragoman.systems.base import Gold
from dragoman.systems.c3po import queries
from dragoman.systems.c3po.actions import Answer, Keep, NoRetrieval, Plan, Search
from dragoman.systems.c3po.settings import Settings
from dragoman.systems.evidence import evidence
from dragoman.systems.grammar import can_say


async def route(settings: Settings, gold: Gold, question: str) -> list[NoRetrieval | Search | Plan]:
    """One search if it finds all there is to find, else a plan; or what the settings hold the router to.

    At marks both are right where a plan would find nothing either: neither the question nor a name in it leads anywhere. What
    the question finds of the gold passages may have names that lead on.
    """
    query = queries.whole(settings, question)
    held: dict[str, NoRetrieval | Search | Plan] = {
        "NoRetrieval": NoRetrieval(),
        "Search": Search(query),
        "Plan": Plan(),
    }
    if settings.strategy:
        return [held[settings.strategy]]
    sayable = any(can_say(line, query) for line in queries.first_queries(settings, question))
    found = gold.ids & set(await gold.find(query, settings.k)) if sayable else set[str]()
    if gold.ids == found:
        return [Search(query)]
    if settings.decide == "marks" and not found:
        further = queries.candidates(settings, question, (), [query])
        if not await gold.finding_first(further, settings.k, gold.ids):
            return [Search(query), Plan()]
    return [Plan()]


async def select(
    settings: Settings, gold: Gold, question: str, objective: str, passages: Sequence[Passage]
) -> list[Keep]:
    """The gold passages and no other; or, where sentences are kept, the evidence in them."""
    needed = await evidence(settings.keep, gold, question, passages, settings.k)
    return [Keep(tuple(i for i, passage in enumerate(passages, start=1) if passage in needed))]


async def decide(
    settings: Settings, gold: Gold, question: str, roadmap: str, kept: Sequence[Passage], asked: Sequence[str]
) -> list[Search | Answer]:
    """The question, then the searches that find first what is missing, and the answer when nothing is or none does.

    The question comes first even where it finds nothing: no policy can foresee that. Where the policy writes, only one of
    the searches that are as good is taken.
    """
    missing = gold.missing(kept)
    if not missing:
        return [Answer()]
    whole = queries.whole(settings, question)
    if settings.decide == "marks":
        new = queries.candidates(settings, question, kept, asked)
    else:
        lines = queries.next_queries(settings, question, kept, asked)
        listed = [whole, *queries.known_names(settings, question, kept)]
        new = [query for query in listed if query not in asked and any(can_say(line, query) for line in lines)]
    if not asked and whole in new:
        return [Search(whole)]
    best: list[Search | Answer] = [Search(query) for query in await gold.finding_first(new, settings.k, missing)]
    return (best if settings.decide == "marks" else best[:1]) or [Answer()]

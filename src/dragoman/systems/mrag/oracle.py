"""What an oracle does in mRAG: it knows gold passages and answers, and acts within the grammar of each agent.

Coordinator: plan, search until all is found or nothing more is, answer, validate, finish. Searcher: gold passages are relevant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.core.text import has, sentences
from dragoman.core.types import Passage
from dragoman.systems.base import Gold
from dragoman.systems.grammar import plain
from dragoman.systems.mrag import marks, queries
from dragoman.systems.mrag.actions import Analysis, Change, End, Keep, Look, More, Query, Steps, Summary, Verdict
from dragoman.systems.mrag.agents import available
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import NOTHING_NEW, Errand, State


async def coordinate(settings: Settings, gold: Gold, question: str, state: State) -> list[Any]:
    """The next call. A response from before the last documents were found is written anew."""
    agents = available(settings, state)
    missing = gold.missing(state.documents)
    if "planner" in agents and not state.turns:
        return [_call(settings, question, state, "planner")]
    if missing and "search" in agents and (best := await _looks(settings, gold, question, state, missing)):
        return [Look(query) for query in best]
    if missing and "searcher" in agents and all(turn.heard != NOTHING_NEW for turn in state.turns):
        return [_call(settings, question, state, "searcher")]
    if not state.response or state.read != state.documents:
        return [_call(settings, question, state, "answerer")]
    return [_call(settings, question, state, "validator" if "validator" in agents else "finisher")]


async def plan(settings: Settings, gold: Gold, question: str, state: State, information: str) -> list[Steps]:
    """What finds a gold passage, out of the question and the names in it; the question if none does."""
    listed = list(queries.planned(settings, question).values())
    finding = [step for step in listed if gold.ids & set(await gold.find(step, _depth(settings)))]
    return [Steps(tuple(finding or listed[:1]))]


async def ask(settings: Settings, gold: Gold, question: str, errand: Errand) -> list[Query]:
    """The question first, which no policy can foresee to find nothing. Then what comes to a missing passage soonest; or any."""
    whole, listed = queries.whole(settings, question), queries.of_errand(settings, question, errand)
    if not errand.asked and whole in listed.values():
        return [Query(whole)]
    best = await _soonest(settings, gold, dict.fromkeys(listed.values(), 0), _missing(gold, errand))
    return _one_of(settings, [Query(query) for query in best or listed.values()] or [Query("")])


async def select(gold: Gold, question: str, errand: Errand, passages: Sequence[Passage]) -> list[Keep]:
    """The gold passages and no other."""
    return [Keep(_relevant(gold, passages))]


async def move(settings: Settings, gold: Gold, question: str, errand: Errand) -> list[More | Change | End]:
    """The searches that come to a missing passage soonest, the next page of this one among them; else the end."""
    moves, missing = queries.moves(settings, question, errand), _missing(gold, errand)
    other = queries.of_errand(settings, question, errand) if Change in moves else {}
    pages = ({errand.query: errand.pages(errand.query)} if More in moves else {}) | dict.fromkeys(other.values(), 0)
    best = await _soonest(settings, gold, pages, missing)
    told = [More() if query == errand.query else Change(query) for query in best]
    return _one_of(settings, told or [End()])


async def read(
    settings: Settings, gold: Gold, question: str, errand: Errand, passages: Sequence[Passage]
) -> list[More | Change | End]:
    """Both at once, where the searcher writes."""
    relevant = _relevant(gold, passages)
    moves = await move(settings, gold, question, errand.read(passages, relevant))
    return [replace(told, relevant=relevant) for told in moves]


async def summarize(settings: Settings, gold: Gold, question: str, state: State, information: str) -> list[Summary]:
    """The sentences behind the answer."""
    return [Summary(plain(" ".join(_facts(gold, state.documents)), settings.summary_chars))]


async def reason(
    settings: Settings, gold: Gold, question: str, state: State, information: str, aspect: str
) -> list[Analysis]:
    """The same, step by step."""
    facts = [plain(fact, settings.line_chars) for fact in _facts(gold, state.documents)]
    return [Analysis(tuple(facts[: settings.max_items]))]


async def validate(settings: Settings, gold: Gold, question: str, state: State, information: str) -> list[Verdict]:
    """Supported when all gold passages were found, correct when the response holds all that was asked for. It sets no criteria."""
    supported = not gold.missing(state.documents)
    correct = gold.is_answered(state.response)
    feedback = settings.decide == "text"
    return [
        Verdict(
            supported=supported,
            supported_feedback="" if supported or not feedback else marks.UNSUPPORTED[: settings.line_chars],
            correct=correct,
            correct_feedback="" if correct or not feedback else marks.INCORRECT[: settings.line_chars],
        )
    ]


async def _looks(settings: Settings, gold: Gold, question: str, state: State, missing: Collection[str]) -> list[str]:
    """The queries of a coordinator that searches itself, as `ask` and `move` have them."""
    whole = queries.whole(settings, question)
    pages = {query: state.asked.count(query) for query in queries.looks(settings, question, state).values()}
    if not state.asked and whole in pages:
        return [whole]
    return _one_of(settings, await _soonest(settings, gold, pages, missing))


async def _soonest(settings: Settings, gold: Gold, pages: Mapping[str, int], missing: Collection[str]) -> list[str]:
    """The queries that come to a missing passage with the fewest further pages, of which `pages` says how many were read."""
    reads = {}
    for query, read in pages.items():
        found = list(await gold.find(query, _depth(settings)))[read * settings.k :] if missing else []
        if places := [place for place, id in enumerate(found) if id in missing]:
            reads[query] = places[0] // settings.k
    return [query for query, count in reads.items() if count == min(reads.values())]


def _depth(settings: Settings) -> int:
    return settings.k * settings.max_pages


def _one_of(settings: Settings, told: list[Any]) -> list[Any]:
    """All that are as good at marks, and the first where the policy writes."""
    return told if settings.decide == "marks" else told[:1]


def _call(settings: Settings, question: str, state: State, agent: str) -> Any:
    return marks.call(settings, question, state, agent)


def _missing(gold: Gold, errand: Errand) -> frozenset[str]:
    """Without those that were read and found irrelevant: this errand takes none of them a second time."""
    return gold.missing((*errand.kept, *errand.seen))


def _relevant(gold: Gold, passages: Sequence[Passage]) -> tuple[bool, ...]:
    return tuple(gold.has(passage) for passage in passages)


def _facts(gold: Gold, documents: Sequence[Passage]) -> list[str]:
    """The sentences of gold passages that have an answer, or an end of a triple; where none has, the first ones."""
    ends = {*gold.answers, *(name for names in gold.parts for name in names), *(end for _, _, end in gold.triples)}
    every = [sentences(passage.text) for passage in documents if gold.has(passage)]
    told = [sentence for each in every for sentence in each if any(has(sentence, end) for end in ends)]
    return told or [each[0] for each in every]

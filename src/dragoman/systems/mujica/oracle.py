"""What an oracle does in Mujica: it knows gold passages, triples and answers, and acts within the grammar of each agent.

It has nothing to say where neither gold passages nor, in a graph, gold triples are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, islice, product

from dragoman.core.text import has, has_answer, names, words
from dragoman.core.types import Passage
from dragoman.corpus.triple_passages import triple_id
from dragoman.systems.base import Gold
from dragoman.systems.evidence import evidence
from dragoman.systems.grammar import Line, can_say
from dragoman.systems.mujica import queries
from dragoman.systems.mujica.actions import Answer, Found, Nothing, Searches, Subquestions, ask
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.slots import About, Search
from dragoman.systems.mujica.state import State
from dragoman.systems.names import copied
from dragoman.systems.options import MOST


async def plan(settings: Settings, gold: Gold, question: str, state: State) -> list[Subquestions | Searches | Answer]:
    """For each gold passage that is missing the name, or else the word, that finds it first; then the end.

    Where the LLM answers from passages, the whole question comes first while that finds any. A planner that answers knows
    no more than a sentence of each worker, so it asks for one thing at a time. In a graph it asks about the known entities
    that have missing triples.
    """
    gold = _known(settings, gold)
    if not gold.ids:
        return []
    missing = gold.missing(state.kept)
    if settings.decide == "marks":
        return await _plans(settings, gold, question, state, missing)
    asked = {fact.question for fact in state.facts}
    line = queries.search(settings, question, state)
    for tried in _tried(settings, question, state):
        sayable = (
            s for s in dict.fromkeys(tried) if missing and str(s) not in asked and can_say(line, _value(line, s))
        )
        found = {search: list(await gold.find(search.query, settings.k)) for search in sayable}
        finding = [{search: hits.index(id) for search, hits in found.items() if id in hits} for id in sorted(missing)]
        best = dict.fromkeys(min(places, key=places.__getitem__) for places in finding if places)
        if best:
            return [ask(tuple(best)[: settings.max_questions])]
    return [Answer()] if settings.answers == "llm" else [*await conclude(settings, gold, question, state)]


def _tried(settings: Settings, question: str, state: State) -> list[list[Search]]:
    """What the oracle tries, in groups: those of a later one only where no search of an earlier one finds anything."""
    if settings.environment == "graph":
        return [list(queries.candidates(settings, question, state).values())]
    texts = [text for text, _, _ in queries.known_runs(settings, question, state)]
    named = [Search(name) for text in texts for name in names(text)]
    single = [Search(word) for text in texts for word in words(text)]
    whole = [Search(queries.whole(settings, question))]
    return [whole, named, single] if settings.answers == "llm" else [named, single, whole]


def _value(line: Line | About, search: Search) -> Search | str:
    return search if isinstance(line, About) else search.question


async def _plans(
    settings: Settings, gold: Gold, question: str, state: State, missing: frozenset[str]
) -> list[Subquestions | Searches | Answer]:
    """Among listed subquestions: the question first, which no policy can foresee to find nothing; then all shortest plans.

    A plan has one subquestion for each missing passage, out of those that find it first; and it is the end where none does.
    """
    new = list(queries.candidates(settings, question, state).values())
    whole = Search(queries.whole(settings, question))
    if missing and not state.facts and whole in new:
        return [ask([whole])]
    found = {search: list(await gold.find(search.query, settings.k)) for search in new} if missing else {}
    finding = []
    for id in sorted(missing):
        places = {search: hits.index(id) for search, hits in found.items() if id in hits}
        if places:
            finding.append([search for search, place in places.items() if place == min(places.values())])
    some = combinations(finding, min(len(finding), settings.max_questions))
    products = islice(chain.from_iterable(product(*choices) for choices in some), MOST)
    plans = dict.fromkeys(tuple(search for search in new if search in plan) for plan in products)
    least = min(map(len, plans))
    return [ask(plan) if plan else Answer() for plan in plans if len(plan) == least]


async def conclude(settings: Settings, gold: Gold, question: str, state: State) -> list[Answer]:
    """The answer, if what is known has it. One that stands in the question, or a yes or no, takes all that is gold."""
    gold = _known(settings, gold)
    if not gold.ids:
        return []
    if settings.decide == "marks":
        return _listed_answers(settings, gold, state)
    line = queries.answer(settings, question, state)
    everything = not gold.missing(state.kept)
    _, *known = (text for text, _, _ in queries.known_runs(settings, question, state))

    def is_known(text: str) -> bool:
        among_choices = text in ("yes", "no") or has(question, text)
        return everything if among_choices else any(has(said, text) for said in known)

    texts = (copied(text, settings.query_chars) for text in gold.answers)
    answers = [text.lower() if text.lower() in ("yes", "no") else text for text in texts]
    wrong = "yes" if "no" in answers else "no"  # what earns nothing is not imitated
    return [Answer(next((text for text in answers if is_known(text) and can_say(line, text)), wrong))]


def _listed_answers(settings: Settings, gold: Gold, state: State) -> list[Answer]:
    """Those that are right; where none is, all of them, since each is as wrong as the others and nothing is to be learnt."""
    listed = list(queries.answers(settings, state).values())
    right = [name for name in listed if any(has_answer(name, text) and has_answer(text, name) for text in gold.answers)]
    return [Answer(name) for name in right or listed]


async def look_up(
    settings: Settings, gold: Gold, question: str, subquestion: str, passages: Sequence[Passage], entity: str = ""
) -> list[Found | Nothing]:
    """The gold passages and one sentence of them; where the planner answers, the sentence's passage alone.

    The sentence is the one that tells the most facts that the question does not. Among equals it is the one with a name
    that finds what is missing, the earlier the better. Where passages are scored there is none.
    """
    gold = _known(settings, gold)
    if not gold.ids:
        return []
    needed = await evidence(settings.keep, gold, question, passages, settings.k)
    kept = {i: passage for i, passage in enumerate(passages, start=1) if passage in needed}
    if settings.decide == "marks":
        return [Found(tuple(kept)) if kept else Nothing()]
    missing = gold.missing(passages)
    facts = {*gold.answers, *(end for subject, _, obj in gold.triples for end in (subject, obj))}
    relations = {relation for _, relation, _ in gold.triples}

    async def rank(i: int, sentence: str) -> tuple[float, ...]:
        found = [await gold.find(name, settings.k) for name in names(sentence)] if missing else []
        leads = min((place for hits in found for place, id in enumerate(hits) if id in missing), default=math.inf)
        told = [fact for fact in facts if has(sentence, fact)]
        new = [fact for fact in told if not has(question, fact)]
        related = [relation for relation in relations if has(sentence, relation)]
        return -len(new), leads, -len(told) - len(related), i

    line = queries.sentence(settings, passages)
    read = [(i, s) for i, passage in kept.items() for s in queries.sentences(passage, settings.proxy_words)]
    texts = [(i, copied(sentence, settings.sentence_chars)) for i, sentence in read]
    ranks = {(i, sentence): await rank(i, sentence) for i, sentence in texts if can_say(line, sentence)}
    if not ranks:
        return [Nothing()]
    best, sentence = min(ranks, key=ranks.__getitem__)
    return [Found(tuple(kept) if settings.answers == "llm" else (best,), sentence)]


def _known(settings: Settings, gold: Gold) -> Gold:
    """What is gold: the passages of text, or the triples behind the answer."""
    return gold if settings.environment == "text" else replace(gold, ids=frozenset(map(triple_id, gold.triples)))

"""What a written question must pass before it is kept. Each filter gives a reason, or nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Sequence

from dragoman.corpus.facts import has
from dragoman.engines.base import Engine, Request
from dragoman.retrieval.base import Retriever
from dragoman.rewards.answer import scores
from dragoman.synthesis.brief import Draft
from dragoman.systems.prompts import load, number
from dragoman.types import Passage

Filter = Callable[[Draft, Sequence[Passage]], Awaitable[str]]

YES_OR_NO = frozenset({"yes", "no"})
FOREIGN = 0.2  # share of a question's letters that may be of scripts which its passages do not use


def length(least: int, most: int) -> Filter:
    """The question has so many words."""

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        words = len(draft.question.split())
        return "" if least <= words <= most else f"{words} words"

    return check


async def language(draft: Draft, passages: Sequence[Passage]) -> str:
    """The question is written in the script of its passages: a model that falls into another language is found out."""
    own = {_script(c) for p in passages for c in p.text if c.isalpha()}
    letters = [c for c in draft.question if c.isalpha()]
    foreign = [c for c in letters if _script(c) not in own]
    return "another script" if len(foreign) > FOREIGN * len(letters) else ""


async def leakage(draft: Draft, passages: Sequence[Passage]) -> str:
    """The question does not say its answer. A yes is no answer to leak."""
    said = [a for a in draft.answers if a.lower() not in YES_OR_NO and has(draft.question, a)]
    return f"it says {said[0]!r}" if said else ""


async def grounded(draft: Draft, passages: Sequence[Passage]) -> str:
    """The answer stands in the passages that are named for it."""
    if {a.lower() for a in draft.answers} & YES_OR_NO:
        return ""
    texts = [f"{p.title} {p.text}" for p in passages if p.id in draft.supporting_ids]
    return "" if any(has(text, answer) for text in texts for answer in draft.answers) else "its passages do not say it"


def retrievable(retriever: Retriever, k: int) -> Filter:
    """A search for the question finds one of its passages among the first k."""

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        (found,) = await retriever.search([draft.question], k)
        return "" if {p.passage.id for p in found} & set(draft.supporting_ids) else f"not among the first {k}"

    return check


def answerable(llm: Engine, *, words: int, max_tokens: int) -> Filter:
    """The frozen LLM answers it with its passages, and not without: a search is worth something."""

    async def reads(draft: Draft, passages: Sequence[Passage]) -> bool:
        name = "answer" if passages else "answer_from_memory"
        values = {"question": draft.question} | ({"passages": number(passages, words)} if passages else {})
        request = Request(load("dragoman.systems", name).messages(values), max_tokens=max_tokens, stop=("\n",))
        (result,) = await llm.generate([request])
        return scores(result.completions[0].text, draft.answers)["cover_em"] == 1

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        if not await reads(draft, [p for p in passages if p.id in draft.supporting_ids]):
            return "not answered with its passages"
        return "answered from memory" if await reads(draft, ()) else ""

    return check


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0]

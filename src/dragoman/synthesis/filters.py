"""What a written question must pass before it is kept. Each filter gives a reason, or nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from dragoman.core.text import SINGLE_WORDS, count_words, stands_in
from dragoman.core.types import Passage
from dragoman.retrieval.base import Retriever
from dragoman.synthesis.brief import Draft
from dragoman.synthesis.reader import Reader

if TYPE_CHECKING:
    from datasketch import MinHash

Filter = Callable[[Draft, Sequence[Passage]], Awaitable[str]]

YES_OR_NO = frozenset({"yes", "no"})
HALF = 0.5
PERMUTATIONS = 128
SHINGLE = 3  # words
FOREIGN = 0.2  # share of a question's letters that may be of scripts which its passages do not use


def length(least: int, most: int) -> Filter:
    """The question has so many words."""

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        words = count_words(draft.question)
        return "" if least <= words <= most else f"{words} words"

    return check


async def language(draft: Draft, passages: Sequence[Passage]) -> str:
    """The question is written in the script of its passages: a model that falls into another language is found out."""
    own = {_script(c) for p in passages for c in p.text if c.isalpha()}
    letters = [c for c in draft.question if c.isalpha()]
    foreign = [c for c in letters if _script(c) not in own]
    return "another script" if len(foreign) > FOREIGN * len(letters) else ""


async def leakage(draft: Draft, passages: Sequence[Passage]) -> str:
    """The question does not say its answer, or a part of it. A yes is no answer to leak."""
    names = [*draft.answers, *(name for part in draft.parts for name in part)]
    said = [a for a in names if a.lower() not in YES_OR_NO and stands_in(draft.question, a)]
    return f"it says {said[0]!r}" if said else ""


async def grounded(draft: Draft, passages: Sequence[Passage]) -> str:
    """Every part of the answer stands in the passages that are named for it; of a yes or a no, what it rests on."""
    texts = [f"{p.title} {p.text}" for p in passages if p.id in draft.supporting_ids]
    if {a.lower() for a in draft.answers} & YES_OR_NO:
        unsaid = [fact for fact in draft.evidence if not any(stands_in(text, fact) for text in texts)]
        return f"its passages do not say {unsaid[0]!r}" if unsaid else ""
    parts = draft.parts or (draft.answers,)
    missing = [part for part in parts if not any(stands_in(text, name) for text in texts for name in part)]
    return "its passages do not say it" if missing else ""


def retrievable(retriever: Retriever, k: int) -> Filter:
    """A search for the question finds one of its passages among the first k."""

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        (found,) = await retriever.search([draft.question], k)
        return "" if {p.passage.id for p in found} & set(draft.supporting_ids) else f"not among the first {k}"

    return check


def answerable(reader: Reader) -> Filter:
    """The frozen LLM answers it with its passages, and not without: a search is worth something."""

    async def check(draft: Draft, passages: Sequence[Passage]) -> str:
        named = [p for p in passages if p.id in draft.supporting_ids]
        if await reader.success(draft.question, draft.answers, named, draft.parts) < HALF:
            return "not answered with its passages"
        known = await reader.success(draft.question, draft.answers, (), draft.parts)
        return "answered from memory" if known >= HALF else ""

    return check


class Duplicates:
    """Near-duplicates of the questions that were kept: by MinHash of word triples (Broder 1997), over a Jaccard threshold."""

    def __init__(self, threshold: float) -> None:
        from datasketch import MinHashLSH

        self._kept = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)

    def of(self, question: str) -> str:
        """The id of a kept question that this one repeats, or nothing."""
        return min(self._kept.query(_minhash(question)), default="")

    def keep(self, id: str, question: str) -> None:
        self._kept.insert(id, _minhash(question))


def _minhash(text: str) -> MinHash:
    from datasketch import MinHash

    words = SINGLE_WORDS.findall(text.lower())
    shingles = {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
    sketch = MinHash(num_perm=PERMUTATIONS)
    sketch.update_batch([shingle.encode() for shingle in shingles])
    return sketch


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0]

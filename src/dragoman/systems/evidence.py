"""Passages by their sentences: where what is kept may be less than a whole passage.

A small LLM loses by each sentence that does not matter, so a filter that keeps sentences shows it what answers the question alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Literal

from dragoman.core.text import content_words, has, has_answer, names, sentences, stem
from dragoman.core.types import Passage
from dragoman.systems.base import Gold
from dragoman.systems.options import MOST

KeepMode = Literal["passages", "sentences"]
"""What is listed to be kept."""


def pieces(passages: Sequence[Passage]) -> list[Passage]:
    """Each sentence as a passage of the same id, the first of a passage with its title.

    So that they can be listed, a passage has at most `MOST` pieces over the number of passages. The last one has what is left of it.
    """
    most = max(1, MOST // max(1, len(passages)))
    found = list[Passage]()
    for passage in passages:
        read = sentences(passage.text.strip())
        texts = read if len(read) <= most else [*read[: most - 1], " ".join(read[most - 1 :])]
        found += [replace(passage, title="" if place else passage.title, text=text) for place, text in enumerate(texts)]
    return found


def joined(passages: Sequence[Passage], taken: Sequence[Passage]) -> list[Passage]:
    """The passages of which a piece was taken, in their order, each cut to its pieces."""
    texts: dict[str, list[str]] = {}
    for piece in taken:
        texts.setdefault(piece.id, []).append(piece.text)
    return [replace(passage, text=" ".join(texts[passage.id])) for passage in passages if passage.id in texts]


def merged(passages: Iterable[Passage]) -> dict[str, Passage]:
    """Each passage once, by its id, with all sentences that are kept of it; further ones come last."""
    kept: dict[str, Passage] = {}
    for passage in passages:
        before = kept.setdefault(passage.id, passage)
        if before.text != passage.text:
            texts = dict.fromkeys([*sentences(before.text), *sentences(passage.text)])
            kept[passage.id] = replace(before, text=" ".join(texts))
    return kept


async def evidence(keep: KeepMode, gold: Gold, question: str, listed: Sequence[Passage], k: int) -> list[Passage]:
    """What is to be kept of what is listed: all gold passages or, of sentences, the first of these that a gold passage has:

    - the ones that tell an answer, or an end of a gold triple, which neither the question nor the title has;
    - the ones with the name whose search, of `k` passages, finds another gold passage first;
    - the one that shares most words with the question.
    """
    of_gold = list(filter(gold.has, listed))
    if keep == "passages":
        return of_gold
    groups = groupby(of_gold, key=lambda piece: piece.id)
    return [piece for _, of_one in groups for piece in await _evidence(gold, question, list(of_one), k)]


async def _evidence(gold: Gold, question: str, pieces: Sequence[Passage], k: int) -> list[Passage]:
    title = pieces[0].title
    ends = {end for subject, _, obj in gold.triples for end in (subject, obj)}
    told = {*gold.answers, *chain(*gold.parts), *ends} - {"yes", "no"}
    facts = [fact for fact in told if not has_answer(question, fact) and not has_answer(title, fact)]
    if telling := [piece for piece in pieces if any(has_answer(piece.text, fact) for fact in facts)]:
        return telling
    called = [
        name for piece in pieces for name in names(piece.text) if not has(question, name) and not has(title, name)
    ]
    others = gold.missing(pieces)
    first = await gold.finding_first(list(dict.fromkeys(called)), k, others) if others else []
    if leading := [piece for piece in pieces if any(has(piece.text, name) for name in first)]:
        return leading
    asked = set(map(stem, content_words(question)))
    return [max(pieces, key=lambda piece: len(asked & set(map(stem, content_words(piece.text)))))]

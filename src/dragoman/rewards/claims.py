"""What an answer claims, by its words alone: names and numbers or, where a sentence has none, its content words.

No model is asked. It is what the lexical rewards and the citations are made of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.core.text import content_words, has, names, owner
from dragoman.core.types import Passage

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_NUMBER = re.compile(r"\d[\d.,]*\d|\d")
_OPENING_WORDS = """according also answer based both but cannot correct currently don’t don't having however i i'm it's located no none
not officially only people sorry sources there's together unfortunately unknown we yes you"""  # no names, for all their capitals
_OPENERS = frozenset(_OPENING_WORDS.split())


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [sentence for part in _SENTENCE.split(text) if (sentence := part.strip())]


def marked(sentence: str) -> list[str]:
    """The names and numbers in a sentence. A word that sentences open with is no name for its capital letter."""
    found = [owner(name) for name in names(sentence) if name.lower() not in _OPENERS]
    return [*found, *_NUMBER.findall(sentence)]


def words(sentence: str) -> list[str]:
    """The words of a sentence that say something: neither small ones, nor a yes or a no."""
    return [word for word in content_words(sentence) if word.lower() not in _OPENERS]


def unsaid(parts: Sequence[str], known: str) -> list[str]:
    """Those that do not stand in a text that is known."""
    return [part for part in parts if not has(known, part)]


def claims(answer: str, question: str) -> list[tuple[list[str], bool]]:
    """Of each sentence of an answer what it adds to the question: names and numbers, or else content words.

    A sentence that adds nothing claims nothing. Where none adds anything, as in a bare yes, the answer claims what the question
    says.

    Returns:
        The parts of each claim, and whether they are names and numbers.
    """
    found = [claim for sentence in sentences(answer) if (claim := _claim(sentence, question))[0]]
    return found or [claim for claim in [_claim(question, "")] if claim[0]]


def _claim(sentence: str, known: str) -> tuple[list[str], bool]:
    if hard := unsaid(marked(sentence), known):
        return hard, True
    return unsaid(words(sentence), known), False


def says(passages: Sequence[Passage], part: str) -> bool:
    """Whether one of the passages has a part of a claim, side by side."""
    return any(has(f"{passage.title} {passage.text}", part) for passage in passages)

"""What subquestions, sentences and answers may be, by the setting `queries`.

- `free`: any line of text, as in the paper.
- `span`: for models too small to phrase any. Subquestions and answers are words copied from the question and from what is
  known. A worker copies a sentence of a passage, and is told the question that its subquestion is a part of.

Where subquestions are scored and not written, `candidates` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.core.text import clip
from dragoman.core.types import Passage
from dragoman.systems.grammar import Line, Span
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.state import State
from dragoman.systems.names import WHOLE_RUN, copied, searches, unasked
from dragoman.systems.prompts import one_line

SPAN_RUN = 6
"""The longest run of words."""

Source = tuple[str, int, int]  # a text, and the fewest and the most words of a run of it


def subquestion(settings: Settings, question: str, state: State) -> Line:
    whole = [(text, WHOLE_RUN, WHOLE_RUN) for text in (question, *state.candidates)]
    return _line(settings, settings.query_chars, [*whole, *known_runs(settings, question, state)])


def whole(settings: Settings, question: str) -> str:
    """The question as a subquestion."""
    return copied(question, settings.query_chars)


def candidates(settings: Settings, question: str, state: State) -> dict[str, str]:
    """What each subquestion is called in a list, and the subquestion: at most `max_candidates` that were not asked."""
    asked = [fact.question for fact in state.facts]
    start = [copied(name, settings.query_chars) for name in state.candidates]
    listed = searches(question, whole(settings, question), state.kept, start)
    return unasked(listed, asked, settings.query_chars, settings.max_candidates)


def answer(settings: Settings, question: str, state: State) -> Line:
    choices = [("yes", 1, 1), ("no", 1, 1)]
    return _line(settings, settings.query_chars, [*choices, *known_runs(settings, question, state)])


def sentence(settings: Settings, passages: Sequence[Passage]) -> Line:
    read = [sentence for p in passages for sentence in sentences(p, settings.proxy_words)]
    return _line(settings, settings.sentence_chars, [(sentence, WHOLE_RUN, WHOLE_RUN) for sentence in read])


def known_runs(settings: Settings, question: str, state: State) -> list[Source]:
    """Short runs of words: first of the question, then of each thing that the planner knows."""
    if settings.split:
        known = [fact.answer for fact in state.facts]
    else:
        known = [one_line(passage, WHOLE_RUN) for passage in state.kept]
    return [(text, 1, SPAN_RUN) for text in (question, *known)]


def sentences(passage: Passage, max_words: int) -> list[str]:
    """The sentences of a passage's first words, each with the title in it: `Its capital is Tirana` says nothing alone."""
    text = clip(passage.text, max_words, more="")
    split = re.split(r"(?<!\bSt\.)(?<=[.!?;])\s+", text)  # St. John's is one name
    return [s if contains(s, passage.title) else f"{passage.title}: {s}" for s in split]


def contains(text: str, name: str) -> bool:
    """Whether the words of a name stand in a text, one after the other."""
    return f" {_folded(name)} " in f" {_folded(text)} "


def _line(settings: Settings, chars: int, sources: Sequence[Source]) -> Line:
    return Line(chars) if settings.queries == "free" else Span(chars, tuple(sources))


def _folded(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))

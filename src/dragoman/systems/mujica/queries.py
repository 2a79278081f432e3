"""What subquestions, sentences and answers may be, by the setting `queries`.

- `free`: any line of text, as in the paper.
- `span`: for models too small to phrase any. Subquestions and answers are words copied from the question and from what is
  known. A worker copies a sentence of a passage, and is told the question that its subquestion is a part of.

Where subquestions are scored and not written, `candidates` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from dragoman.core.text import clip, has
from dragoman.core.types import Passage
from dragoman.corpus.triple_passages import ends
from dragoman.systems.grammar import Line, Span
from dragoman.systems.mujica.settings import Settings
from dragoman.systems.mujica.slots import About, Search
from dragoman.systems.mujica.state import State
from dragoman.systems.names import QUESTION_CHARS, QUESTION_RUN, WHOLE_RUN, copied, searches, unasked
from dragoman.systems.options import MOST, by_line
from dragoman.systems.prompts import one_line

END = "answer"
"""What the end is called in a list."""
YES_OR_NO = ("yes", "no")
SPAN_RUN = 6
"""The longest run of words."""

Source = tuple[str, int, int]  # a text, and the fewest and the most words of a run of it


def search(settings: Settings, question: str, state: State) -> Line | About:
    """What the planner may ask: a subquestion, in a graph with the entity that it is about."""
    if settings.environment == "text":
        return subquestion(settings, question, state)
    runs: list[Source] = [(question, 1, SPAN_RUN)]
    names = [(name, WHOLE_RUN, WHOLE_RUN) for name in entities(state)]
    asked = _line(settings, _chars(settings), [_itself(settings, question), *runs])
    return About(_line(settings, settings.query_chars, names or runs), asked)


def subquestion(settings: Settings, question: str, state: State) -> Line:
    runs = [_itself(settings, question), *known_runs(settings, question, state)]
    return _line(settings, _chars(settings), runs)


def whole(settings: Settings, question: str) -> str:
    """The question as a subquestion."""
    return copied(question, _chars(settings), QUESTION_RUN)


def entities(state: State) -> tuple[str, ...]:
    """The entities of a graph that the planner knows: those to start from, and the ends of the triples that it kept."""
    return tuple(dict.fromkeys([*state.candidates, *(end for triple in state.kept for end in ends(triple))]))


def candidates(settings: Settings, question: str, state: State) -> dict[str, Search]:
    """What each search is called in a list, and the search: at most `max_candidates` that were not asked.

    In a graph each is about another entity, and the question is the whole one.
    """
    asked = [fact.question for fact in state.facts]
    if settings.environment == "graph":
        known = dict.fromkeys(copied(name, settings.query_chars) for name in entities(state))
        about = (Search(whole(settings, question), name) for name in known if name)
        new = (search for search in about if str(search) not in asked)
        named = by_line({search.entity: search for search in new}, END)
        return dict(islice(named.items(), settings.max_candidates))
    listed = by_line(searches(question, whole(settings, question), state.kept), END)
    found = unasked(listed, asked, settings.query_chars, settings.max_candidates)
    return {name: Search(query) for name, query in found.items()}


def answer(settings: Settings, question: str, state: State) -> Line:
    if settings.decide == "marks":
        listed = [(name, WHOLE_RUN, WHOLE_RUN) for name in answers(settings, state)]
        return _line(settings, settings.query_chars, listed)
    choices = [(word, 1, 1) for word in YES_OR_NO]
    return _line(settings, settings.query_chars, [*choices, *known_runs(settings, question, state)])


def answers(settings: Settings, state: State) -> dict[str, str]:
    """In a graph, what each answer is called in a list, and the answer: an entity that is known, or yes or no."""
    known = dict.fromkeys(copied(name, settings.query_chars) for name in entities(state))
    named = by_line({name: name for name in known if name and name not in YES_OR_NO})
    room = MOST - len(YES_OR_NO)  # however many entities are known
    return dict(islice(named.items(), room)) | dict(by_line({word: word for word in YES_OR_NO}))


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
    return [s if has(s, passage.title) else f"{passage.title}: {s}" for s in split]


def _itself(settings: Settings, question: str) -> Source:
    """The question as a single run."""
    return whole(settings, question), QUESTION_RUN, QUESTION_RUN


def _chars(settings: Settings) -> int:
    """Most characters of a subquestion that can be the question. At marks it is only rendered."""
    return QUESTION_CHARS if settings.decide == "marks" else settings.query_chars


def _line(settings: Settings, chars: int, sources: Sequence[Source]) -> Line:
    return Line(chars) if settings.queries == "free" else Span(chars, tuple(sources))

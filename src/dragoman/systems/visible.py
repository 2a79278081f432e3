"""How much of what a proxy needs shows in the words that it reads of a passage.

Of the gold passages of questions:

- *answer*: the share that shows an answer, of those that hold one;
- *bridge*: the share that shows the title of another gold passage, of those that hold it. Titles that the question has itself do
  not count: it is by the others that a second search is found.

No model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.core.text import has
from dragoman.core.types import Passage, Question
from dragoman.systems.base import System
from dragoman.systems.prompts import focused, one_line

View = Callable[[Passage, int, str], str]
"""A passage in so many words, for a question."""
VIEWS: Mapping[str, View] = {"first": lambda passage, words, _: one_line(passage, words), "focused": focused}
WHOLE = 10**6
"""More words than a passage has."""
SETTINGS = ("filter_words", "proxy_words")
"""Of a system: to how many words its roles see a passage cut. 0 is no cut of its own."""


class Seen(NamedTuple):
    """Of the passages that hold something, the share that shows it, for each number of words."""

    passages: int
    shares: Mapping[int, float]


class Held(NamedTuple):
    """A gold passage of a question, with the texts of which one is to be shown."""

    question: str
    passage: Passage
    texts: Sequence[str]


def seen(held: Iterable[Held], words: Sequence[int], view: View) -> Seen:
    """Count passages of which some text shows, out of those that have it at all."""
    there = [each for each in held if _shows(each, WHOLE, view)]
    return Seen(len(there), {n: sum(_shows(each, n, view) for each in there) / max(1, len(there)) for n in words})


def answers(questions: Sequence[Question], passages: Mapping[str, Passage]) -> list[Held]:
    """The gold passages of each question, with its answers."""
    return [Held(q.question, passages[id], q.answers) for q in questions for id in q.supporting_ids if id in passages]


def bridges(questions: Sequence[Question], passages: Mapping[str, Passage]) -> list[Held]:
    """Pairs of gold passages of a question: one, with the title of the other. A part in parentheses is no part of a name."""
    found = list[Held]()
    for q in questions:
        gold = [passages[id] for id in q.supporting_ids if id in passages]
        for passage in gold:
            titles = (other.title.partition(" (")[0] for other in gold if other is not passage)
            found += [Held(q.question, passage, [title]) for title in titles if title and not has(q.question, title)]
    return found


def visible_to(
    system: System, questions: Sequence[Question], passages: Mapping[str, Passage]
) -> dict[str, dict[str, Any]]:
    """What the roles of a system see of gold passages, by the setting that cuts them: `words`, and the shares.

    A share is None where no gold passage holds such a thing. A setting of which nothing can be said is left out.
    """
    view = VIEWS.get(getattr(system, "view", "first"))
    if view is None:  # of somebody else's system, it may mean anything
        return {}
    if getattr(system, "keep", "passages") != "passages":  # each sentence is cut by itself
        return {}
    held = {"answer": answers(questions, passages), "bridge": bridges(questions, passages)}
    found = dict[str, dict[str, Any]]()
    for setting in SETTINGS:
        if words := getattr(system, setting, 0):
            counts = {name: seen(those, [words], view) for name, those in held.items()}
            if any(count.passages for count in counts.values()):
                shares = {name: count.shares[words] if count.passages else None for name, count in counts.items()}
                found[setting] = {"words": words, **shares}
    return found


def _shows(held: Held, words: int, view: View) -> bool:
    shown = view(held.passage, words, held.question)
    return any(has(shown, text) for text in held.texts)

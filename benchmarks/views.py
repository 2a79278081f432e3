"""How much of what a proxy needs it sees of a passage, by `view` and by words (`filter_words`, `proxy_words`).

For each view and number of words, of the gold passages of all questions:

- *answer*: the share that shows an answer, of those that hold one;
- *bridge*: the share that shows the title of another gold passage, of those that hold it. Titles that the question has itself do
  not count: it is by the others that a second search is found.

No model is asked.

    python -m benchmarks.views --corpus data/atlas/corpus.jsonl --questions data/atlas/train.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.core.text import has
from dragoman.core.types import Passage, Question
from dragoman.corpus import load_corpus, load_questions
from dragoman.systems.prompts import focused, one_line

View = Callable[[Passage, int, str], str]
"""A passage in so many words, for a question."""
VIEWS: Mapping[str, View] = {"first": lambda passage, words, _: one_line(passage, words), "focused": focused}
WORDS = (16, 24, 32, 48, 64, 100)
WHOLE = 10**6
"""More words than a passage has."""


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


def _shows(held: Held, words: int, view: View) -> bool:
    shown = view(held.passage, words, held.question)
    return any(has(shown, text) for text in held.texts)


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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="with supporting_ids")
    parser.add_argument("--words", type=int, nargs="+", default=WORDS)
    chosen = parser.parse_args(argv)
    passages = {passage.id: passage for passage in load_corpus(chosen.corpus)}
    questions = load_questions(chosen.questions)
    held = {"answer": answers(questions, passages), "bridge": bridges(questions, passages)}
    print("| words | view | passages | " + " | ".join(map(str, chosen.words)) + " |")
    print("|---" * (3 + len(chosen.words)) + "|")
    for name, those in held.items():
        for view, show in VIEWS.items():
            count, shares = seen(those, chosen.words, show)
            print(f"| {name} | {view} | {count} | " + " | ".join(f"{share:.2f}" for share in shares.values()) + " |")


if __name__ == "__main__":
    main()

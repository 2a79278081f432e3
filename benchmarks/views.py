"""How much of what a proxy needs it sees, when passages are shown by their first words (`filter_words`, `proxy_words`).

For each number of words, of the gold passages of all questions:

- *answer*: the share that shows an answer, of those that hold one;
- *bridge*: the share that shows the title of another gold passage, of those that hold it. Titles that the question has itself do
  not count: it is by the others that a second search is found.

No model is asked.

    python -m benchmarks.views --corpus data/atlas/corpus.jsonl --questions data/atlas/train.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.core.text import has
from dragoman.core.types import Passage, Question
from dragoman.corpus import load_corpus, load_questions
from dragoman.systems.prompts import one_line

WORDS = (16, 24, 32, 48, 64, 100)
WHOLE = 10**6
"""More words than a passage has."""


class Seen(NamedTuple):
    """Of the passages that hold something, the share that shows it, for each number of words."""

    passages: int
    shares: Mapping[int, float]


def seen(held: Iterable[tuple[Passage, Sequence[str]]], words: Sequence[int]) -> Seen:
    """Count passages of which some text shows, out of those that have it at all.

    Args:
        held: passages, each with the texts of which one is to be shown.
    """
    there = [(passage, texts) for passage, texts in held if _shows(passage, texts, WHOLE)]
    return Seen(len(there), {n: sum(_shows(*each, n) for each in there) / max(1, len(there)) for n in words})


def _shows(passage: Passage, texts: Sequence[str], words: int) -> bool:
    view = one_line(passage, words)
    return any(has(view, text) for text in texts)


def answers(questions: Sequence[Question], passages: Mapping[str, Passage]) -> list[tuple[Passage, Sequence[str]]]:
    """The gold passages of each question, with its answers."""
    return [(passages[id], q.answers) for q in questions for id in q.supporting_ids if id in passages]


def bridges(questions: Sequence[Question], passages: Mapping[str, Passage]) -> list[tuple[Passage, Sequence[str]]]:
    """Pairs of gold passages of a question: one, with the title of the other. A part in parentheses is no part of a name."""
    found: list[tuple[Passage, Sequence[str]]] = []
    for question in questions:
        gold = [passages[id] for id in question.supporting_ids if id in passages]
        for passage in gold:
            titles = (other.title.partition(" (")[0] for other in gold if other is not passage)
            found += [(passage, [title]) for title in titles if title and not has(question.question, title)]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="with supporting_ids")
    parser.add_argument("--words", type=int, nargs="+", default=WORDS)
    chosen = parser.parse_args(argv)
    passages = {passage.id: passage for passage in load_corpus(chosen.corpus)}
    questions = load_questions(chosen.questions)
    rows = {"answer": seen(answers(questions, passages), chosen.words)}
    rows["bridge"] = seen(bridges(questions, passages), chosen.words)
    print("| first words | passages | " + " | ".join(map(str, chosen.words)) + " |")
    print("|---" * (2 + len(chosen.words)) + "|")
    for name, (count, shares) in rows.items():
        print(f"| {name} | {count} | " + " | ".join(f"{share:.2f}" for share in shares.values()) + " |")


if __name__ == "__main__":
    main()

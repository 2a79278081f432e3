"""How much of what a proxy needs it sees of a passage, by `view` and by words (`filter_words`, `proxy_words`).

For each view and number of words, of the gold passages of all questions: which share shows an answer, and which the title of another
gold passage (`dragoman.systems.visible`). No model is asked.

    python -m benchmarks.views --corpus data/atlas/corpus.jsonl --questions data/atlas/train.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragoman.corpus import load_corpus, load_questions
from dragoman.systems.visible import VIEWS, answers, bridges, seen

WORDS = (16, 24, 32, 48, 64, 100)


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

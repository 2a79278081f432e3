"""What some words of gold passages show, as the command prints it."""

import json

from benchmarks import views
from dragoman.core.types import Passage, Question

FILM = Passage("film", "Ran (film)", "Ran is a film of 1985 that was directed by Akira Kurosawa.")
MAN = Passage("man", "Akira Kurosawa", "He was a director who was born in Tokyo.")
ASKED = Question("q", "Where was the director of Ran born?", answers=("Tokyo",), supporting_ids=("film", "man"))


def test_the_command_prints_a_row_for_each(tmp_path, capsys):
    passages = [{"id": p.id, "title": p.title, "text": p.text} for p in (FILM, MAN)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, passages)))
    (tmp_path / "train.jsonl").write_text(json.dumps(ASKED.to_json()))
    views.main(
        ["--corpus", str(tmp_path / "corpus.jsonl"), "--questions", str(tmp_path / "train.jsonl"), "--words", "8", "12"]
    )
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| answer | first | 1 | 0.00 | 1.00 |",
        "| answer | focused | 1 | 0.00 | 1.00 |",
        "| bridge | first | 1 | 0.00 | 1.00 |",
        "| bridge | focused | 1 | 0.00 | 1.00 |",
    ]

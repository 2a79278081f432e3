"""What some words of gold passages show, by hand."""

import json

from benchmarks import views
from dragoman.core.types import Passage, Question

FILM = Passage("film", "Ran (film)", "Ran is a film of 1985 that was directed by Akira Kurosawa.")
MAN = Passage("man", "Akira Kurosawa", "He was a director who was born in Tokyo.")
ASKED = Question("q", "Where was the director of Ran born?", answers=("Tokyo",), supporting_ids=("film", "man"))
FIRST, FOCUSED = views.VIEWS["first"], views.VIEWS["focused"]
GOLD = {"film": FILM, "man": MAN}


def test_an_answer_is_seen_once_its_word_is_among_the_first():
    assert views.seen(views.answers([ASKED], GOLD), [8, 9], FIRST) == (1, {8: 0.0, 9: 1.0})


def test_a_bridge_is_the_title_of_another_gold_passage_that_the_question_does_not_name():
    assert views.seen(views.bridges([ASKED], GOLD), [11, 12], FIRST) == (1, {11: 0.0, 12: 1.0})


def test_a_sentence_about_the_question_is_seen_before_the_first_ones():
    late = Passage("man", "Akira Kurosawa", "He made thirty films. He liked to paint. He was born in Tokyo.")
    held = views.answers([ASKED], {"man": late})
    assert views.seen(held, [5], FIRST) == (1, {5: 0.0}) and views.seen(held, [5], FOCUSED) == (1, {5: 1.0})


def test_a_part_of_a_name_or_of_a_word_is_not_seen():
    short = Question("q", "Which city?", answers=("Tok",), supporting_ids=("man",))
    assert views.seen(views.answers([short], GOLD), [100], FIRST) == (0, {100: 0.0})


def test_a_gold_passage_that_the_corpus_lacks_counts_for_nothing():
    assert (
        views.answers([ASKED], {"man": MAN}) == [(ASKED.question, MAN, ("Tokyo",))]
        and views.bridges([ASKED], {"man": MAN}) == []
    )


def test_the_command_prints_a_row_for_each(tmp_path, capsys):
    passages = [{"id": p.id, "title": p.title, "text": p.text} for p in GOLD.values()]
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

"""What some words of gold passages show, by hand."""

from types import SimpleNamespace

from dragoman.core.types import Passage, Question
from dragoman.systems import build, visible

FILM = Passage("film", "Ran (film)", "Ran is a film of 1985 that was directed by Akira Kurosawa.")
MAN = Passage("man", "Akira Kurosawa", "He was a director who was born in Tokyo.")
ASKED = Question("q", "Where was the director of Ran born?", answers=("Tokyo",), supporting_ids=("film", "man"))
FIRST, FOCUSED = visible.VIEWS["first"], visible.VIEWS["focused"]
GOLD = {"film": FILM, "man": MAN}


def test_an_answer_is_seen_once_its_word_is_among_the_first():
    assert visible.seen(visible.answers([ASKED], GOLD), [8, 9], FIRST) == (1, {8: 0.0, 9: 1.0})


def test_a_bridge_is_the_title_of_another_gold_passage_that_the_question_does_not_name():
    assert visible.seen(visible.bridges([ASKED], GOLD), [11, 12], FIRST) == (1, {11: 0.0, 12: 1.0})


def test_a_sentence_about_the_question_is_seen_before_the_first_ones():
    late = Passage("man", "Akira Kurosawa", "He made thirty films. He liked to paint. He was born in Tokyo.")
    held = visible.answers([ASKED], {"man": late})
    assert visible.seen(held, [5], FIRST) == (1, {5: 0.0}) and visible.seen(held, [5], FOCUSED) == (1, {5: 1.0})


def test_a_part_of_a_name_or_of_a_word_is_not_seen():
    short = Question("q", "Which city?", answers=("Tok",), supporting_ids=("man",))
    assert visible.seen(visible.answers([short], GOLD), [100], FIRST) == (0, {100: 0.0})


def test_a_gold_passage_that_the_corpus_lacks_counts_for_nothing():
    assert (
        visible.answers([ASKED], {"man": MAN}) == [(ASKED.question, MAN, ("Tokyo",))]
        and visible.bridges([ASKED], {"man": MAN}) == []
    )


def test_a_system_shows_its_roles_as_many_words_as_its_settings_say():
    proxy = build("c3po", {"filter_words": 8, "proxy_words": 12})
    assert visible.visible_to(proxy, [ASKED], GOLD) == {
        "filter_words": {"words": 8, "answer": 0.0, "bridge": 0.0},
        "proxy_words": {"words": 12, "answer": 1.0, "bridge": 1.0},
    }


def test_a_system_without_a_cut_of_its_own_for_the_filter_has_one_row():
    assert list(visible.visible_to(build("c3po", {"filter_words": 0}), [ASKED], GOLD)) == ["proxy_words"]


def test_a_view_that_looks_for_the_question_shows_what_stands_late():
    late = {"man": Passage("man", "Akira Kurosawa", "He made thirty films. He liked to paint. He was born in Tokyo.")}
    shown = {
        view: visible.visible_to(build("c3po", {"view": view, "proxy_words": 5, "decide": "marks"}), [ASKED], late)
        for view in ("first", "focused")
    }
    assert [shown[view]["proxy_words"]["answer"] for view in ("first", "focused")] == [0.0, 1.0]


def test_where_no_gold_passage_is_known_nothing_is_said_of_what_shows():
    assert visible.visible_to(build("maps", {"proxy_words": 9}), [ASKED], {}) == {}


def test_a_share_of_what_no_gold_passage_holds_is_unknown():
    assert visible.visible_to(build("maps", {"proxy_words": 9}), [ASKED], {"man": MAN}) == {
        "proxy_words": {"words": 9, "answer": 1.0, "bridge": None}
    }


def test_of_a_system_that_keeps_sentences_nothing_is_said():
    said = {
        keep: visible.visible_to(build("c3po", {"keep": keep, "proxy_words": 5, "decide": "marks"}), [ASKED], GOLD)
        for keep in ("passages", "sentences")
    }
    assert said["passages"] and not said["sentences"]


def test_of_a_system_whose_view_is_something_else_nothing_is_said():
    theirs = SimpleNamespace(view="from above", proxy_words=9)
    assert visible.visible_to(theirs, [ASKED], GOLD) == {}

"""The queries that C-3PO lists, of which its next search is one."""

from __future__ import annotations

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.systems.c3po.queries import candidates, named_candidates
from dragoman.systems.c3po.settings import Settings

QUESTION = "Where was the director of The Red Kite born?"
WHOLE = "Where was the director of The Red Kite born"
FILM = Passage(
    "film",
    "The Red Kite (1951 film)",
    "A release of Alder Pictures in May. It was directed by Jane Doe and shot in Lisbon.",
)


def listed(kept=(), asked=(), question=QUESTION, **settings):
    return candidates(Settings(**settings), question, kept, asked)


def test_candidates_before_any_search_are_the_question_and_its_names():
    assert listed() == [WHOLE, "Red Kite"]


def test_candidates_with_a_kept_passage_are_its_names_with_what_it_leaves_open():
    # Jane Doe's sentence says `directed`, as the question nearly does; Lisbon is the last name, and one word
    assert listed([FILM], [WHOLE]) == [
        "Jane Doe Jane Doe director born",
        "Alder Pictures Alder Pictures director born",
        "Lisbon Lisbon director born",
    ]


def test_candidates_when_nothing_is_left_of_the_question_are_bare_names():
    question = "Was The Red Kite shot in Lisbon or directed by John Roe?"
    kept = [FILM, Passage("roe", "John Roe", "John Roe is a director. He knew Mary Moe.")]
    assert listed(kept, ["Was The Red Kite shot in Lisbon or directed by John Roe"], question) == [
        "Lisbon", "Jane Doe", "Alder Pictures", "Mary Moe",
    ]  # fmt: skip


def test_candidates_of_a_title_are_without_its_brackets_and_from_untitled_passages_without_any():
    question = "Who made the best film of 1951?"
    assert listed([FILM], question=question)[1] == "The Red Kite The Red Kite made best"
    untitled = Passage("x", "", "The money came from Alder Pictures.")
    assert listed([untitled], question=question)[1:] == ["Alder Pictures Alder Pictures made best film 1951"]


def test_candidates_are_new_and_no_more_than_are_asked_for():
    first, second, third = listed([FILM], [WHOLE])
    assert listed([FILM], [WHOLE, first]) == [second, third]
    assert listed([FILM], [WHOLE], max_candidates=2) == [first, second]
    assert listed([FILM, FILM], [WHOLE]) == [first, second, third]
    assert listed([FILM], [WHOLE, first, second, third]) == []
    assert listed(question="?") == []


def test_a_name_that_was_asked_is_no_candidate_with_fewer_words_of_the_question_either():
    doe = Passage(
        "doe", "Jane Doe", "Jane Doe was a director who met Mary Moe."
    )  # after it `director` is no longer open
    asked = [WHOLE, "Alder Pictures Alder Pictures director born", "Lisbon Lisbon director born"]
    assert listed([FILM, doe], asked) == ["Mary Moe Mary Moe born", "Jane Doe Jane Doe born"]


def test_the_owner_of_something_is_the_same_name_as_without_it():
    question = "When did Jane Doe's father die?"
    assert listed(question=question) == ["When did Jane Doe's father die", "Jane Doe"]
    doe = Passage("doe", "Jane Doe", "Jane Doe is John Roe's daughter.")
    assert listed([doe], ["When did Jane Doe's father die"], question) == ["John Roe John Roe father die"]


def test_a_question_that_is_too_long_for_a_query_is_cut_between_words():
    assert listed(query_chars=30)[0] == "Where was the director of The"
    assert listed(question="x" * 50, query_chars=30)[0] == "x" * 30


def test_candidates_are_no_longer_than_a_query_and_a_name_that_is_fills_none():
    long = Passage("long", "Ships", "The Order of the " + "Very " * 8 + "Old Ship won.")
    assert listed([long], query_chars=40)[1:] == ["Red Kite", "Ships Ships director Red Kite born"]
    assert all(len(query) <= 20 for query in listed([FILM], query_chars=20))


def test_a_candidate_is_called_by_its_name():
    assert named_candidates(Settings(), QUESTION, [FILM], []) == {
        "the question": WHOLE,
        "Jane Doe": "Jane Doe Jane Doe director born",
        "Alder Pictures": "Alder Pictures Alder Pictures director born",
        "Lisbon": "Lisbon Lisbon director born",
    }


def test_a_list_that_would_hold_nothing_is_refused():
    with pytest.raises(UserError, match="max_candidates is 0: list at least one query"):
        Settings(max_candidates=0)

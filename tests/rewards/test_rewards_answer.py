"""The scores, on cases worked out by hand with SQuAD's and HotpotQA's evaluation rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.rewards.answer import cover_exact_match, exact_match, normalize, precision_f1, scores


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an   Apple, a day ", "apple day"),
        ("U.S.A.", "usa"),  # punctuation is removed, not replaced by a space
        ("rock-and-roll", "rockandroll"),
        ("theatre", "theatre"),  # articles are words, not beginnings
        ("São Tomé", "são tomé"),
        ("the", ""),
    ],
)
def test_normalization(text, bare):
    assert normalize(text) == bare


@pytest.mark.parametrize(
    ("answer", "gold", "em", "cover", "precision", "f1"),
    [
        ("The ngultrum.", "ngultrum", 1, 1, 1, 1),
        ("It is the Bhutanese ngultrum", "ngultrum", 0, 1, 1 / 4, 2 / 5),
        ("Barack Obama", "Barack Hussein Obama", 0, 0, 1, 4 / 5),
        ("ngultrums", "ngultrum", 0, 0, 0, 0),  # whole words
        ("yes", "yes", 1, 1, 1, 1),
        ("yes, he was", "yes", 0, 1, 0, 0),  # HotpotQA: a yes is only a yes
        ("no", "noanswer", 0, 0, 0, 0),
        ("", "Paris", 0, 0, 0, 0),
        ("a b b", "b b c", 0, 0, 1, 4 / 5),  # articles go first: {b, b} against {b, b, c}
    ],
)
def test_by_hand(answer, gold, em, cover, precision, f1):
    assert exact_match(answer, gold) == em
    assert cover_exact_match(answer, gold) == cover
    assert precision_f1(answer, gold) == (pytest.approx(precision), pytest.approx(f1))


def test_the_best_acceptable_answer_counts():
    assert scores("UK", ("United Kingdom", "UK"))["em"] == 1


words = st.text(alphabet="abcxyz ", min_size=1, max_size=20)


@given(words, words)
def test_relations_between_the_scores(answer, gold):
    s = scores(answer, (gold,))
    assert 0 <= s["f1"] <= 1
    if normalize(gold):
        assert s["em"] <= s["cover_em"]
        assert s["em"] <= s["f1"]

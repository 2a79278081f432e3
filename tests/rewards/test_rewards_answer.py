"""The scores, on cases worked out by hand with SQuAD's and HotpotQA's evaluation rules."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.types import Question
from dragoman.rewards import Reward
from dragoman.rewards.answer import cover_exact_match, exact_match, normalize, precision_f1, scores
from dragoman.systems.base import StopReason


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
        ("", "*", 0, 0, 0, 0),  # where normalisation leaves nothing, as it is written
        ("*", "*", 1, 1, 1, 1),
        (" * ", "*", 1, 1, 1, 1),
        ("It is *.", "*", 0, 1, 0, 0),
        ("Paris", "*", 0, 0, 0, 0),
        ("", "A", 0, 0, 0, 0),
        ("the", "A", 0, 0, 0, 0),
        ("A", "A", 1, 1, 1, 1),
        ("type A", "A", 0, 1, 1 / 2, 2 / 3),
        ("a dog", "A", 0, 0, 0, 0),
        ("The", "The The", 0, 0, 1, 2 / 3),
        ("The The", "The The", 1, 1, 1, 1),
        ("It was the band The The", "The The", 0, 1, 2 / 6, 2 * (2 / 6) / (2 / 6 + 1)),
        ("A.", "A", 1, 1, 1, 1),  # the choice of several
        ("(A)", "A", 1, 1, 1, 1),
        ("B.", "B", 1, 1, 1, 1),
    ],
)
def test_by_hand(answer, gold, em, cover, precision, f1):
    assert exact_match(answer, gold) == em
    assert cover_exact_match(answer, gold) == cover
    assert precision_f1(answer, gold) == (pytest.approx(precision), pytest.approx(f1))


@pytest.mark.parametrize(
    ("answer", "gold", "cover"),
    [
        ("“Paris”", "Paris", 1),
        ("Paris…", "Paris", 1),
        ("Paris—the capital", "Paris", 1),
        ("¿Paris?", "Paris", 1),
        ("in 1990–1995", "1995", 1),
        ("It was O’Brien", "O'Brien", 1),
        ("Beyonce\u0301", "Beyoncé", 1),  # decomposed
        ("Paris", "“Paris”", 1),
        ("Il s'agit de l'Allemagne.", "Allemagne", 1),
        ("dell’Umbria", "Umbria", 1),
        ("Allemagne", "l'Allemagne", 0),
        ("The X‑200/B is the one.", "X-200/B", 1),  # a hyphen that no line is broken at
        ("It is 1990–1995.", "1990-1995", 1),
        ("at −5 degrees", "-5", 1),
        ("Dante's", "Dante", 0),
        ("we don't", "don", 0),
        ("Paristown…", "Paris", 0),
        ("", "–", 0),
        ("Paris", "–", 0),
    ],
)
def test_cover_em_looks_past_the_marks_of_print_that_squad_does_not_know(answer, gold, cover):
    assert cover_exact_match(answer, gold) == cover


def test_the_best_acceptable_answer_counts():
    assert scores("UK", ("United Kingdom", "UK"))["em"] == 1


PARTS = (("251,000", "251 thousand"), (".is",))


@pytest.mark.parametrize(
    ("answer", "cover"),
    [
        ("251,000 people, under .is", 1),
        (".is, and 251 thousand", 1),  # in any order, by any name
        ("251,000", 0),  # half of it
        ("about 251,000 and .se", 0),
        ("", 0),
    ],
)
def test_cover_em_asks_for_each_part_of_an_answer(answer, cover):
    assert scores(answer, ("251,000 and .is",), PARTS)["cover_em"] == cover


def test_the_other_scores_compare_with_whole_answers():
    found = scores("251,000", ("251,000 and .is",), PARTS)
    assert (found["em"], found["precision"]) == (0, 1)
    assert found["f1"] == pytest.approx(2 * 1 * (1 / 3) / (1 + 1 / 3))


async def test_the_reward_asks_for_each_part_too():
    question = Question("q", "?", ("251,000 and .is",), parts=PARTS)
    half, whole = (SimpleNamespace(answer=text, stop=StopReason.ANSWERED) for text in ("251,000", ".is and 251,000"))
    for trajectory, value in ((half, 0), (whole, 1)):
        assert (await Reward.of("cover_em").score(question, trajectory, []))["cover_em"] == value


words = st.text(alphabet="abcxyz* ", min_size=1, max_size=20)


@given(words, words)
def test_relations_between_the_scores(answer, gold):
    s = scores(answer, (gold,))
    assert 0 <= s["f1"] <= 1
    if gold.strip():
        assert s["em"] <= s["cover_em"]
        assert s["em"] <= s["f1"]


@pytest.mark.parametrize(
    ("answer", "gold", "cover"),
    [
        ("答案是北京。", "北京", 1.0),
        ("北京。", "北京", 1.0),
        ("上海。", "北京", 0.0),
        ("ที่กรุงเทพมหานครครับ", "กรุงเทพมหานคร", 1.0),
        ("In Thimphubad", "Thimphu", 0.0),
    ],
)
def test_cover_em_finds_an_answer_in_a_script_without_blanks_by_its_letters(answer, gold, cover):
    assert scores(answer, (gold,))["cover_em"] == cover

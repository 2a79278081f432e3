"""Options of a state: what they are, and which are refused."""

from dataclasses import dataclass

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.systems.options import Choice, Selection, as_line, passage_lines, rendered


@dataclass(frozen=True)
class Go:
    where: str


def choice(*names: str) -> Choice:
    return Choice("Next:\n", tuple((name, Go(name)) for name in names))


def selection(*texts: str) -> Selection:
    return Selection("Found:\n", texts, make=lambda places: places, places=lambda action: action)


def test_an_action_and_its_places_are_each_others_inverse():
    assert choice("a", "b").taken(choice("a", "b").action([1])) == (1,)
    assert selection("a", "b", "c").taken(selection("a", "b", "c").action([2, 0])) == (0, 2)


def test_an_action_that_is_not_listed_has_no_place():
    with pytest.raises(KeyError):
        choice("a").taken(Go("b"))
    with pytest.raises(KeyError):
        selection("a").taken((1,))


def test_the_text_of_a_prompt_has_a_mark_after_each_option():
    assert rendered(choice("a", "b")) == "Next:\na ->\nb ->"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "needs options"),
        (("a", ""), "an empty one"),
        (("a", "b", "a"), "read alike: 'a'"),
        (tuple(map(str, range(1000))), "1000 options, at most 100"),
    ],
)
@pytest.mark.parametrize("kind", [choice, selection])
def test_options_that_cannot_be_told_apart_or_are_too_many_are_refused(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(*options)


def test_a_line_cannot_hold_a_mark_or_a_line_break():
    assert as_line("a ->\nb\t c") == "a - b c"


def test_a_passage_that_reads_like_the_number_of_another_has_a_line_of_its_own():
    alike = [Passage(str(i), "", text) for i, text in enumerate(("X", "X (3)", "X"), start=1)]
    assert passage_lines(alike, words=16) == ("X", "X (3)", "X (3) (3)")

"""Options of a state: what they are, and which are refused."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.systems import build
from dragoman.systems.c3po import marks as c3po
from dragoman.systems.maps import marks as maps
from dragoman.systems.mrag import marks as mrag
from dragoman.systems.mujica import Mujica
from dragoman.systems.mujica import marks as mujica
from dragoman.systems.options import Choice, Selection, as_line, at_marks, passage_lines, rendered


@dataclass(frozen=True)
class Go:
    where: str


@dataclass(frozen=True)
class Stay:
    pass


@dataclass(frozen=True)
class Settings:
    decide: str = "marks"
    bias: Mapping[str, Mapping[str, float]] | None = None


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


def leaning(bias, listed, decide="marks"):
    role = at_marks(Settings(decide, bias), "walker", lambda settings, **state: listed)
    return role and role(question="Where to?").bias


def test_a_bias_stands_by_the_options_whose_action_is_of_its_type():
    either = Choice("Next:\n", (("on", Go("on")), ("stay", Stay()), ("back", Go("back"))))
    assert leaning({"walker": {"Go": 1.5}}, either) == (1.5, 0.0, 1.5)
    assert leaning({"walker": {"Go": 1.5, "Stay": -1}}, either) == (1.5, -1, 1.5)
    several = Selection("Found:\n", ("a", "b"), make=lambda places: Go(str(places)), places=lambda action: ())
    assert leaning({"walker": {"Go": 2}}, several) == (2, 2)


@pytest.mark.parametrize("bias", [None, {}, {"walker": {"Stay": 2}}, {"walker": {"Go": 0}}, {"filter": {"Go": 2}}])
def test_options_that_no_bias_is_for_are_as_without_any(bias):
    assert leaning(bias, choice("a", "b")) == ()


def test_a_role_that_writes_has_no_options():
    assert leaning({"walker": {"Go": 2}}, choice("a"), decide="text") is None


EACH = pytest.mark.parametrize(
    ("system", "kinds"),
    [("c3po", c3po.KINDS), ("maps", maps.KINDS), ("mujica", mujica.kinds(Mujica())), ("mrag", mrag.KINDS)],
)


@EACH
def test_a_bias_for_nothing_is_refused_with_what_there_is(system, kinds):
    role, (kind, *_) = next(iter(kinds.items()))
    with pytest.raises(UserError, match=f"bias: nothing is called 'cook'; choose from {role}"):
        build(system, {"bias": {"cook": {"Fry": 1}}})
    with pytest.raises(UserError, match=f"bias.{role}: nothing is called 'Fry'; choose from {kind.__name__}"):
        build(system, {"bias": {role: {"Fry": 1}}})
    with pytest.raises(UserError, match=f"bias.{role}.{kind.__name__} nan: must be a finite number"):
        build(system, {"bias": {role: {kind.__name__: float("nan")}}})
    with pytest.raises(UserError, match=f"systems.{system}.bias"):
        build(system, {"bias": {role: {kind.__name__: "much"}}})


@EACH
def test_a_bias_may_be_for_each_action_that_a_role_has_at_marks(system, kinds):
    bias = {role: {kind.__name__: 1.0 for kind in each} for role, each in kinds.items()}
    assert build(system, {"bias": bias}).bias == bias

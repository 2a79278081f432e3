"""Actions as JSON: what is rendered is parsed back, the sampler can say it, and what is not an action is refused."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import xgrammar
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from xgrammar.testing import _is_grammar_accept_string

from dragoman.systems.grammar import InvalidAction, JsonForm, JsonOneOf, plain, text_of, tuple_of


@dataclass(frozen=True)
class Step:
    agent: Literal["searcher", "reasoner"]
    query: str = ""


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    sure: bool = True
    confidence: float | None = None


@dataclass(frozen=True)
class Keep:
    ids: tuple[int, ...]
    thought: str = ""


PLAN = JsonForm(Plan, kind="plan")
KEEP = JsonForm(Keep, kind="keep", ids=tuple[Literal[1, 2, 3], ...], thought=Annotated[str, Field(max_length=40)])
EITHER = JsonOneOf(PLAN, KEEP)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
plans = st.builds(
    Plan,
    st.lists(st.builds(Step, st.sampled_from(["searcher", "reasoner"]), texts), max_size=3).map(tuple),
    st.booleans(),
    st.none() | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6),
)
keeps = st.builds(Keep, st.lists(st.integers(1, 3), max_size=4).map(tuple), texts)


@examples()
@given(plans | keeps)
def test_a_rendered_action_is_parsed_back_and_fits_the_schema(action):
    form = PLAN if isinstance(action, Plan) else KEEP
    for grammar in (form, EITHER):
        text = grammar.render(action)
        assert grammar.parse(text) == grammar.parse(f"\n```json\n{text}\n```") == action
        jsonschema.validate(json.loads(text), json.loads(grammar.constraint().json_schema))


@pytest.mark.parametrize("action", [Keep((1, 3), "both « Öl »"), Plan((Step("searcher", 'a "b"\n\tc'),), False)])
def test_the_sampler_can_say_what_is_rendered(action):
    grammar = xgrammar.Grammar.from_json_schema(EITHER.constraint().json_schema, any_whitespace=False)
    assert _is_grammar_accept_string(grammar, EITHER.render(action))
    assert not _is_grammar_accept_string(grammar, EITHER.render(action).replace("searcher", "x").replace("1", "4"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keep 1",
        '{"action": "keep", "ids": [4], "thought": ""}',
        '{"action": "keep", "ids": ["1"], "thought": ""}',
        '{"action": "drop", "ids": [1], "thought": ""}',
        '{"action": "keep", "ids": [1]}',
        '{"action": "keep", "ids": [1], "thought": "", "more": 1}',
        '{"action": "plan", "steps": [], "sure": true, "confidence": NaN}',
    ],
)
def test_a_text_that_is_no_action_is_refused(text):
    with pytest.raises(InvalidAction):
        EITHER.parse(text)


@pytest.mark.parametrize("action", [Keep((4,)), Keep((1,), "x" * 41), Plan((), confidence=float("nan"))])
def test_an_action_that_has_no_text_is_refused(action):
    with pytest.raises(InvalidAction):
        EITHER.render(action)


def test_the_kinds_are_alternatives_and_every_object_is_closed():
    assert [kind.cls for kind in EITHER.alternatives()] == [Plan, Keep]
    schema = json.loads(EITHER.constraint().json_schema)
    for name in ("Plan", "Keep", "Step"):
        closed: dict[str, Any] = schema["$defs"][name]
        assert closed["additionalProperties"] is False and closed["required"] == list(closed["properties"])
        assert not any({"default", "title"} & set(value) for value in closed["properties"].values())


def test_two_objects_of_one_class_are_one_alternative_that_says_either():
    one, other = JsonForm(Keep, kind="keep"), JsonForm(Keep, kind="keep all", without={"ids"}, thought=text_of(9))
    keep, plan = JsonOneOf(one, PLAN, other).alternatives()
    assert (keep.cls, plan) == (Keep, PLAN)
    assert keep.constraint() == JsonOneOf(one, other).constraint()


def test_a_form_that_does_not_fit_its_dataclass_is_refused():
    @dataclass(frozen=True)
    class Act:
        action: str

    with pytest.raises(ValueError, match="Keep has no field 'id'; it has"):
        JsonForm(Keep, id=int)
    with pytest.raises(ValueError, match="'action', which is a field already"):
        JsonForm(Act, kind="act")
    assert JsonForm(Act).parse('{"action": "go"}') == Act("go")


SHORT = JsonForm(Step, kind="step", tag="call", agent=text_of(8), query=text_of(5))


@given(texts, st.integers(1, 20))
def test_a_plain_text_is_short_stays_as_it_is_and_is_sayable(text, chars):
    made = plain(text, chars)
    assert len(made) <= chars and plain(made, chars) == made and not set('"\\\n\t') & set(made)
    form = JsonForm(Step, agent=text_of(chars), without=["query"])
    assert form.parse(form.render(Step(made))) == Step(made)


def test_a_field_of_a_length_is_cut_and_made_plain_when_read():
    assert SHORT.render(Step("a 'b'", "x")) == '{"call": "step", "agent": "a \'b\'", "query": "x"}'
    read = SHORT.parse('{"call": "step", "agent": " a \\"b\\"\\n\x01c d", "query": "123456"}')
    assert read == Step("a 'b' c", "12345")
    assert SHORT.parse('{"call": "step", "agent": "a\\u0000b", "query": "\x7fa\\u2028\x9bb"}') == Step("a b", "a b")
    for action in (Step('"'), Step("a", "123456"), Step("a  b")):
        with pytest.raises(InvalidAction):
            SHORT.render(action)


def test_a_field_that_is_left_out_has_its_default_and_no_key():
    form = JsonForm(Keep, kind="keep", without=["thought"], ids=tuple_of(int, 2, 1))
    assert form.render(Keep((1,))) == '{"action": "keep", "ids": [1]}'
    assert form.parse('{"action": "keep", "ids": [1, 2]}') == Keep((1, 2))
    for text in ('{"action": "keep", "ids": [1], "thought": ""}', '{"action": "keep", "ids": []}'):
        with pytest.raises(InvalidAction):
            form.parse(text)
    with pytest.raises(InvalidAction, match="does not survive"):
        form.render(Keep((1,), "why"))
    with pytest.raises(ValueError, match="Keep has no field 'reason'"):
        JsonForm(Keep, without=["reason"])

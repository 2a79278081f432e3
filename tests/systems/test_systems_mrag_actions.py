"""The JSON of mRAG's agents: one definition renders, parses and constrains; lengths are those of the settings."""

import json

import jsonschema
import pytest
import xgrammar
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from xgrammar.testing import _is_grammar_accept_string

from dragoman.systems.grammar import InvalidAction, plain
from dragoman.systems.mrag import actions
from dragoman.systems.mrag.actions import (
    Analysis,
    Answer,
    Change,
    End,
    Keep,
    Look,
    More,
    Plan,
    Query,
    Reason,
    Revise,
    Search,
    Steps,
    Summary,
    Validate,
    Verdict,
)
from dragoman.systems.mrag.settings import Settings

FULL = Settings(information_chars=30, reason_chars=20, answers="guided", line_chars=40, summary_chars=60, max_items=3)
AGENTS = tuple(actions.CALLS)
lines = st.text(max_size=60).map(lambda text: plain(text, 40))
short = lines.map(lambda text: plain(text, 20))
several = st.lists(lines, max_size=3).map(tuple)
verdicts = st.tuples(st.booleans(), st.booleans())
calls = st.one_of(
    st.builds(Plan, short, short),
    st.builds(Search, several, short, short),
    st.builds(Look, lines, short),
    st.builds(Reason, lines, short, short),
    st.builds(Validate, short, short),
    st.builds(Answer, lines, lines, short),
    st.builds(Revise, lines, short),
)
SAID = st.one_of(
    calls.map(lambda action: (actions.coordinator(FULL, AGENTS), action)),
    st.builds(Query, lines, short).map(lambda action: (actions.query(FULL), action)),
    st.one_of(st.builds(More, verdicts, short), st.builds(Change, lines, verdicts, short), st.builds(End, verdicts, short)).map(
        lambda action: (actions.reading(FULL, (More, Change, End), 2), action)
    ),
    st.builds(Keep, verdicts).map(lambda action: (actions.selection(2), action)),
    st.builds(Steps, several).map(lambda action: (actions.planner(FULL), action)),
    st.builds(Summary, lines).map(lambda action: (actions.summarizer(FULL), action)),
    st.builds(Analysis, several).map(lambda action: (actions.reasoner(FULL), action)),
    st.builds(Verdict, several, several, st.booleans(), lines, st.booleans(), lines).map(
        lambda action: (actions.validator(FULL), action)
    ),
)  # fmt: skip


@given(SAID)
@examples()
def test_every_action_is_read_back_from_its_text_and_fits_its_schema(said):
    grammar, action = said
    text = grammar.render(action)
    assert grammar.parse(text) == action == grammar.parse(f"```json\n{text}\n```")
    jsonschema.validate(json.loads(text), json.loads(grammar.constraint().json_schema))


@pytest.mark.parametrize(
    ("grammar", "action"),
    [
        (actions.coordinator(FULL, AGENTS), Search(("the « Öl » price", "it's"), "known", "to begin")),
        (actions.reading(FULL, (More, Change, End), 2), Change("Tarn Bridge", (True, False), "none helps")),
        (actions.validator(FULL), Verdict(("short",), (), False, "no source", True, "")),
    ],
)
def test_the_sampler_can_say_what_is_rendered(grammar, action):
    allowed = xgrammar.Grammar.from_json_schema(grammar.constraint().json_schema, any_whitespace=False)
    text = grammar.render(action)
    assert _is_grammar_accept_string(allowed, text)
    assert not _is_grammar_accept_string(allowed, text.replace("true", "null").replace("searcher", "seeker"))


def test_what_has_no_length_is_neither_said_nor_read():
    grammar = actions.coordinator(Settings(), ("planner", "answerer"))
    assert grammar.render(Plan()) == '{"agent": "planner"}' and grammar.parse('{"agent": "answerer"}') == Answer()
    with pytest.raises(InvalidAction):
        grammar.parse('{"agent": "planner", "reason": "why not"}')
    with pytest.raises(InvalidAction, match="does not survive"):
        grammar.render(Plan(reason="why not"))


def test_a_text_that_is_too_long_or_not_plain_is_cut_and_made_plain_when_read():
    grammar = actions.query(Settings(line_chars=12))
    assert grammar.parse('{"query": " the \\"Tarn\\" Bridge\\n"}') == Query("the 'Tarn'")
    with pytest.raises(InvalidAction):
        grammar.render(Query("the Tarn Bridge"))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_there_is_one_verdict_for_each_document(count):
    grammar = actions.reading(Settings(), (End,), count)
    assert grammar.parse(grammar.render(End((True,) * count))) == End((True,) * count)
    with pytest.raises(InvalidAction):
        grammar.parse(json.dumps({"next": "end", "relevant": [True] * (count + 1)}))

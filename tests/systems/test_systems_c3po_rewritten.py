"""Instructions of C-3PO's agents in other words: what is read instead, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.registry.trained_with import trained_with
from dragoman.systems import build
from dragoman.systems.c3po.marks import INSTRUCTIONS
from dragoman.systems.options import rendered
from dragoman.systems.prompts import Prompt, load

ROUTER = "[system]\nBe bold.\n[user]\nHow would you handle {question}?\nAction:"
WORDS = st.text(st.characters(exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=30).map(str.strip)
SECTION = WORDS.filter(lambda text: not any(f"[{name}]" in text for name in ("system", "user", "assistant")))


@given(SECTION, SECTION, SECTION)
def test_a_prompt_is_read_back_from_its_text(system, user, assistant):
    prompt = Prompt("p", system, user, assistant=assistant)
    assert Prompt.parse("p", prompt.text) == prompt


def test_the_instructions_of_agents_that_write_are_their_prompts():
    system = build("c3po", {"thoughts": True})
    assert list(system.instructions) == ["router", "filter", "decide"]
    assert system.instructions["filter"] == load("dragoman.systems.c3po", "filter_with_thought").text


def test_at_marks_they_are_what_stands_before_the_question():
    assert build("c3po", {"decide": "marks"}).instructions == INSTRUCTIONS


@pytest.mark.parametrize("decide", ["text", "marks"])
def test_brief_prompts_have_none(decide):
    assert build("c3po", {"decide": decide, "prompts": "brief"}).instructions == {}


def test_a_system_without_agents_has_none_and_takes_none():
    assert build("standard").instructions == {}
    with pytest.raises(UserError, match="Standard takes no other instructions than its own"):
        build("standard").with_instructions({"router": "x"})


def test_a_rewritten_agent_reads_its_new_prompt_and_the_others_their_own():
    own = build("c3po", {"shots": 1})
    system = own.with_instructions({"router": ROUTER})
    messages = system.router.messages({"question": "who?"})
    assert messages[0] == ("system", "Be bold.") and messages[-1] == ("user", "How would you handle who??\nAction:")
    assert len(messages) == 4  # with the example of its own prompt
    assert system.filter.prompt == own.filter.prompt
    assert system.instructions == {**own.instructions, "router": ROUTER}


@pytest.mark.parametrize("decide", ["text", "marks"])
def test_its_own_instructions_change_nothing_that_it_reads(decide):
    own = build("c3po", {"decide": decide})
    same = own.with_instructions(own.instructions)
    assert [role.prompt for role in same.roles] == [role.prompt for role in own.roles]
    if decide == "marks":
        assert rendered(same.router.options(question="who?")) == rendered(own.router.options(question="who?"))


def test_at_marks_the_rewritten_text_stands_before_the_question():
    system = build("c3po", {"decide": "marks", "prompts": "brief"}).with_instructions({"filter": " Keep rivers.\n"})
    options = system.filter.options(question="who?", objective="", passages=[Passage("p", "P", "text")])
    assert options.prompt.startswith("Keep rivers.\nQuestion: who?\n")
    assert system.prompts == "full" and set(system.instructions) == {"router", "filter", "decide"}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ({"judge": "x"}, "no agent is called 'judge'; they are router, filter, decide"),
        ({"router": "Be bold."}, r"rewritten\.router: expected \[user\]"),
        ({"router": "[user]\nGo on."}, r"rewritten\.router: the prompt of this agent has the slots \{question\}, each"),
        ({"router": "[user]\n{question} {who}"}, r"rewritten\.router: .* and no other"),
        ({"router": " "}, r"rewritten\.router: expected the text of its instructions, found ' '"),
        ({"router": 3}, r"rewritten\.router: expected the text of its instructions, found 3"),
    ],
)
def test_a_text_that_the_agent_cannot_be_given_is_refused(texts, error):
    with pytest.raises(UserError, match=error):
        build("c3po").with_instructions(texts)


def test_settings_may_name_texts_by_agent_alone():
    assert build("c3po", {"rewritten": {"router": ROUTER}}).router.prompt.system == "Be bold."
    with pytest.raises(
        UserError, match=r"systems.c3po.rewritten: 'router' will not do: Input should be a valid dictionary"
    ):
        build("c3po", {"rewritten": "router"})


def test_what_a_policy_was_trained_with_tells_rewritten_instructions():
    own = build("c3po")
    assert trained_with(own) != trained_with(own.with_instructions({"router": ROUTER}))

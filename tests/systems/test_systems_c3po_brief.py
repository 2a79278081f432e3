"""C3PO that writes its actions after brief prompts: what it is shown, and that examples fit."""

import re

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.systems.c3po.system import C3PO

QUESTION = "Where was the designer of the Tarn Bridge born?"
BRIDGE = Passage("b", "Tarn Bridge", "It was opened in 1871.")
STATES = {
    "router": {"question": QUESTION},
    "filter": {"question": QUESTION, "objective": "", "passages": [BRIDGE]},
    "decide": {"question": QUESTION, "roadmap": "", "kept": [BRIDGE], "asked": ["Tarn Bridge"]},
}


def system(**settings) -> C3PO:
    return C3PO(prompts="brief", **settings)


@pytest.mark.parametrize(
    ("role", "changes", "text"),
    [
        ("router", {}, f"Question: {QUESTION}\n\nStrategy:"),
        ("filter", {}, f"Question: {QUESTION}\n\n[1] Tarn Bridge: It was opened in 1871.\n\nKeep:"),
        (
            "filter",
            {"objective": "Tarn"},
            f"Question: {QUESTION}\nObjective of this step: Tarn\n\n[1] Tarn Bridge: It was opened in 1871.\n\nKeep:",
        ),
        (
            "decide",
            {"roadmap": "1. Go.", "kept": [], "asked": []},
            f"Question: {QUESTION}\n\nPlan:\n1. Go.\n\nKnown:\n(none)\n\nSearched: (none)\n\nNext:",
        ),
        (
            "decide",
            {},
            f"Question: {QUESTION}\n\nKnown:\n[1] Tarn Bridge: It was opened in 1871.\n\nSearched: Tarn Bridge\n\nNext:",
        ),
    ],
)
def test_a_brief_prompt_is_one_message_of_question_and_state(role, changes, text):
    (agent,) = (agent for agent in system().roles if agent.name == role)
    assert agent.messages(STATES[role] | changes) == (("user", text),)


@pytest.mark.parametrize("select", ["numbers", "titles"])
def test_examples_of_a_brief_prompt_are_those_of_the_full_one(select):
    brief, full = system(select=select, shots=9), C3PO(select=select, shots=9)
    for agent, other in zip(brief.roles, full.roles, strict=True):
        state = STATES[agent.name]
        *examples, _ = agent.messages(state)
        said = [text for who, text in examples if who == "assistant"]
        assert said == [text for who, text in other.messages(state) if who == "assistant"] and said
        grammar = agent.grammar(**state | ({"passages": [BRIDGE] * 3} if agent.name == "filter" else {}))
        if select == "numbers":
            assert all(grammar.parse(text) for text in said)
        shown = "\n".join(text for who, text in examples if who == "user")
        assert "{" not in shown and len(re.findall("Question: ", shown)) == len(said)


def test_brief_prompts_ask_for_no_thoughts():
    with pytest.raises(UserError, match="prompts: brief asks for no thoughts; set prompts: full, or thoughts: false"):
        system(thoughts=True)
    with pytest.raises(UserError, match="prompts 'short': choose from full, brief"):
        C3PO(prompts="short")

"""One question on a terminal: what is shown of its steps and its answer."""

from __future__ import annotations

from dragoman.core.types import Passage
from dragoman.evaluation.ask import Answered, show_answer, show_step
from dragoman.rollout.record import Call
from dragoman.systems.base import StopReason

CLEAR = "\x1b[2J"  # empties the screen of a terminal


def call(kind: str, asked: object, output: object) -> Call:
    return Call(id="1", kind=kind, name="answer", input=asked, output=output, started=0, seconds=0.5)


def test_what_a_model_or_a_passage_says_commands_no_terminal():
    passage = Passage(f"p{CLEAR}", f"title{CLEAR}", f"text{CLEAR}\x07")
    shown = [
        show_step(call("ask", [], f"Port {CLEAR}Salt\nthen more")),
        show_step(call("search", {"query": f"a{CLEAR}", "page": 0}, [passage.id])),
        show_answer(Answered(f"Port {CLEAR}Salt", (passage,), StopReason.ANSWERED, None, 1, 0.5)),
    ]
    for text in shown:
        assert "\x1b" not in text and "\x07" not in text and "\\x1b[2J" in text
    assert shown[0] == "    LLM writes the answer (0.5 s): Port \\x1b[2JSalt\n      then more"

"""The frozen LLM as a reader: what it is asked, and how often that answers the question."""

from dataclasses import replace

import pytest
from fakes import ScriptedEngine
from lands import BHUTAN, NEPAL

from dragoman.core.identity import FINGERPRINTED, import_closure
from dragoman.synthesis import reader
from dragoman.synthesis.reader import Reader

QUESTION = "What is the capital of Bhutan?"


@pytest.mark.parametrize(
    ("reply", "answers", "success"),
    [
        ("The capital is Thimphu.", ["Thimphu"], 1.0),
        ("Kathmandu", ["Thimphu"], 0.0),
        ("thimphu city", ["Thimbu", "Thimphu"], 1.0),
        ("", ["Thimphu"], 0.0),
    ],
)
async def test_one_answer_is_greedy_and_right_or_not(reply, answers, success):
    engine = ScriptedEngine(lambda prompt, rng: reply)
    assert await Reader(engine).success(QUESTION, answers, [BHUTAN]) == success
    (request,) = engine.requests
    assert (request.n, request.temperature) == (1, 0.0)


async def test_several_answers_are_drawn_and_counted():
    engine = ScriptedEngine(lambda prompt, rng: "Thimphu" if rng.random() < 0.5 else "Paro")
    share = await Reader(engine, draws=16, seed=3).success(QUESTION, ["Thimphu"], [BHUTAN])
    assert 0 < share < 1 and (share * 16).is_integer()
    (request,) = engine.requests
    assert (request.n, request.temperature, request.seed) == (16, 1.0, 3)
    again = ScriptedEngine(engine.script)
    assert await Reader(again, draws=16, seed=3).success(QUESTION, ["Thimphu"], [BHUTAN]) == share


async def test_it_reads_numbered_passages_cut_to_length_or_answers_from_memory():
    engine = ScriptedEngine(lambda prompt, rng: "")
    reader = Reader(engine, passage_words=4)
    await reader.success(QUESTION, ["x"], [NEPAL, BHUTAN])
    await reader.success(QUESTION, ["x"], [])
    read, remembered = (request.messages[-1]["content"] for request in engine.requests)
    assert "[1] Nepal: The capital of Nepal ...\n[2] Bhutan: Bhutan is a kingdom ...\n" in read
    assert "document" not in remembered
    assert QUESTION in read and QUESTION in remembered


def test_a_fingerprint_follows_all_that_an_answer_depends_on():
    reader = Reader(ScriptedEngine(lambda prompt, rng: ""))
    other = ScriptedEngine(lambda prompt, rng: "")
    other.fingerprint = "other"
    changes = [{"llm": other}, {"passage_words": 50}, {"max_tokens": 8}, {"draws": 4}, {"seed": 1}]
    assert len({reader.fingerprint, *(replace(reader, **change).fingerprint for change in changes)}) == 6


def test_other_answer_prompts_or_another_scoring_is_another_reader(monkeypatch):
    code = {path.name for path in import_closure(reader.__name__, FINGERPRINTED)}
    assert {"answer.txt", "answer_from_memory.txt", "answer.py"} <= code  # of systems, and of rewards
    frozen = Reader(ScriptedEngine(lambda prompt, rng: ""))
    before = frozen.fingerprint
    monkeypatch.setattr(reader, "code_hash", lambda *modules, stop: "other")
    assert frozen.fingerprint != before

"""The judge's rewards against values worked out by hand (section 3.2.1, algorithms 3 and 4)."""

import json
import random
from types import SimpleNamespace

import pytest
from fakes import ScriptedEngine

from dragoman.core.errors import EngineFault
from dragoman.core.types import Passage, Question
from dragoman.engines.transformers import TransformersEngine
from dragoman.rewards import Reward
from dragoman.rewards.nuggets import CORRECT, SUPPORTED, faithfulness, find_aspects, nuggets
from dragoman.systems.base import StopReason

QUESTION = Question(
    "q", "Capital and money of Bhutan?", ("Thimphu and ngultrum",),
    nuggets=("the capital of Bhutan: Thimphu", "the money of Bhutan: ngultrum"), reference="They are Thimphu and the ngultrum.",
)  # fmt: skip
PASSAGES = [Passage("bt", "Bhutan", "Thimphu is the capital."), Passage("np", "Nepal", "Kathmandu is the capital.")]


def said(answer: str | None, stop: StopReason = StopReason.ANSWERED) -> SimpleNamespace:
    return SimpleNamespace(nodes=[], steps=[], answer=answer, passages=[], stop=stop)


def judge(*verdicts: str, aspects: object = ("one",)) -> ScriptedEngine:
    """Gives these verdicts in turn, and finds these aspects in any text."""
    left = list(verdicts)

    def script(prompt: str, rng: random.Random) -> str:
        if prompt.startswith("{"):  # it is held to the schema of aspects
            return aspects if isinstance(aspects, str) else json.dumps({"aspects": list(aspects)})
        return left.pop(0)

    return ScriptedEngine(script)


async def test_correctness_is_the_mean_over_aspects_of_the_mean_over_draws():
    # first aspect: (2 + 2 + 1) / 3 = 5/3, so (5/3 + 1) / 3 = 8/9; second: (-1 + 0 + -1) / 3 = -2/3, so 1/9
    engine = judge("2", "2", "1", "-1", "0", "-1")
    assert await nuggets(QUESTION, said("Thimphu, rupee"), PASSAGES, judge=engine, draws=3) == pytest.approx(0.5)
    assert [(r.n, r.temperature, r.grammar) for r in engine.requests] == [(3, 0.5, CORRECT.grammar)] * 2
    assert ["Thimphu, rupee" in r.messages[-1]["content"] for r in engine.requests] == [True, True]
    assert engine.requests[0].seed != engine.requests[1].seed


@pytest.mark.parametrize(("verdict", "value"), [("2", 1), ("1", 2 / 3), ("0", 1 / 3), ("-1", 0)])
async def test_the_scale_of_correctness_ends_at_one(verdict, value):
    question = Question("q", "Capital?", ("Thimphu",))
    assert await nuggets(question, said("x"), [], judge=judge(verdict), draws=1) == pytest.approx(value)


@pytest.mark.parametrize(("verdict", "value"), [("1", 1), ("0", 0.5), ("-1", 0)])
async def test_faithfulness_asks_the_passages_for_each_aspect_of_the_answer(verdict, value):
    engine = judge(verdict, verdict, aspects=["a town", "a river"])
    assert await faithfulness(QUESTION, said("long answer"), PASSAGES, judge=engine, draws=1) == value
    found, *asked = engine.requests
    assert "long answer" in found.messages[-1]["content"] and found.temperature == 0
    assert [r.grammar for r in asked] == [SUPPORTED.grammar] * 2
    for request, aspect in zip(asked, ("a town", "a river"), strict=True):
        assert f"claims: {aspect}" in request.messages[-1]["content"]
        assert "[1] Bhutan: Thimphu is the capital." in request.messages[-1]["content"]


async def test_aspects_of_a_reference_are_found_once_a_question():
    question = Question("q", "Capital?", ("Thimphu",), reference="Thimphu, a town.")
    engine = judge("2", "0", "2", "2", aspects=["Thimphu", "a town"])
    assert await nuggets(question, said("Thimphu"), [], judge=engine, draws=1) == pytest.approx((1 + 1 / 3) / 2)
    assert await nuggets(question, said("the town of Thimphu"), [], judge=engine, draws=1) == 1
    texts = [request.messages[-1]["content"] for request in engine.requests]
    assert sum("Text: Thimphu, a town." in text for text in texts) == 1 and len(texts) == 5


@pytest.mark.parametrize(
    "aspects",
    [
        '{"aspects": ["cut o',
        '{"aspects": "one"}',
        '{"aspects": {"a": "b"}}',
        "[]",
        '{"aspects": []}',
        '{"aspects": [1]}',
        "x",
    ],
)
async def test_aspects_that_cannot_be_read_are_no_score(aspects):
    engine = judge("1", aspects=aspects)
    assert await find_aspects(engine, "q", "text", 8) == []
    assert await faithfulness(QUESTION, said("x"), PASSAGES, judge=engine) is None
    question = Question("q", "Capital?", ("Thimphu",), reference="Thimphu, a town.")
    assert await nuggets(question, said("x"), PASSAGES, judge=engine) is None


async def test_only_so_many_aspects_are_judged_and_none_twice():
    engine = judge(aspects=["a", " a ", "b", "c"])
    assert await find_aspects(engine, "q", "text", 2) == ["a", "b"]


async def test_a_draw_that_cannot_be_read_is_left_out_and_an_aspect_without_any_is_no_score():
    assert await nuggets(QUESTION, said("x"), [], judge=judge("2", "well", "2", "3"), draws=2) == 1
    assert await nuggets(QUESTION, said("x"), [], judge=judge("2", "2", "well", "3"), draws=2) is None


@pytest.mark.parametrize(
    ("verdict", "value"),
    [("2.", 1), ("**2**", 1), ("+1 -", 2 / 3), ("-1, as", 0), ("20", None), ("2.5", None), ("3", None)],
)
async def test_a_verdict_of_a_judge_that_is_held_by_no_grammar_is_read_where_it_is_one(verdict, value):
    assert await nuggets(QUESTION, said("x"), [], judge=judge(verdict, verdict), draws=1) == value


async def test_what_needs_no_judge_asks_none():
    engine = judge()
    assert await nuggets(QUESTION, said(" "), PASSAGES, judge=engine) == pytest.approx(1 / 3)
    assert await faithfulness(QUESTION, said(""), PASSAGES, judge=engine) == 0
    assert await faithfulness(QUESTION, said("Thimphu"), [], judge=engine) == 0
    assert await nuggets(QUESTION, said(None), PASSAGES, judge=engine) is None
    assert await faithfulness(QUESTION, said(None), PASSAGES, judge=engine) is None
    assert await nuggets(Question("q", "?"), said("x"), PASSAGES, judge=engine) is None
    assert engine.requests == []


@pytest.mark.parametrize(
    "stop", [StopReason.INVALID_ACTION, StopReason.TRUNCATED_ACTION, StopReason.HALLUCINATED_INDEX]
)
async def test_an_action_that_cannot_be_read_is_no_abstention(stop):
    """It would earn more than a wrong answer, and self-training would imitate it."""
    assert await nuggets(QUESTION, said("", stop), PASSAGES, judge=judge()) == 0
    assert await nuggets(QUESTION, said("", StopReason.EMPTY_ANSWER), PASSAGES, judge=judge()) == pytest.approx(1 / 3)


async def test_a_real_engine_is_held_to_the_scale_and_to_the_schema(tiny_model, monkeypatch):
    monkeypatch.setattr("dragoman.rewards.nuggets.LONGEST", 12)  # so that a model which never ends an aspect has to
    engine = TransformersEngine(tiny_model, dtype="float32", threads=1)
    generate, texts = engine.generate, []

    async def heard(requests):
        results = await generate(requests)
        texts.extend(completion.text for result in results for completion in result.completions)
        return results

    monkeypatch.setattr(engine, "generate", heard)
    try:
        assert 0 <= await nuggets(QUESTION, said("Thimphu"), PASSAGES, judge=engine, draws=2) <= 1
        assert {text.strip() for text in texts} <= {"-1", "0", "1", "2"}
        texts.clear()
        await find_aspects(engine, "Capital?", "Thimphu, a town.", 1)
        (aspect,) = json.loads(texts[0])["aspects"]  # as it was written, before anything is cut
        assert 0 < len(aspect) <= 12
    finally:
        await engine.close()


async def test_the_paper_s_reward_is_an_expression():
    # correctness 2/3 by two verdicts of 1, faithfulness 1/2 by a verdict of 0: R = (4 * 2/3 + 1/2) / 5
    reward = Reward.of("0.8 * nuggets(draws=1) + 0.2 * faithfulness(draws=1)", grades("1", "0"))
    scores = await reward.score(QUESTION, said("Thimphu"), PASSAGES)
    assert scores[reward.name] == pytest.approx((4 * 2 / 3 + 1 / 2) / 5)
    assert reward.bounds == (0, 1)


def grades(correct: str, supported: str) -> ScriptedEngine:
    def script(prompt: str, rng: random.Random) -> str:
        if prompt.startswith("{"):
            return '{"aspects": ["one"]}'
        return correct if prompt.startswith("-1|0|1|2") else supported

    return ScriptedEngine(script)


async def test_a_judge_that_fails_is_no_score_of_the_sum_and_not_zero():
    engine = ScriptedEngine(lambda prompt, rng: EngineFault("down"))
    reward = Reward.of("0.8 * nuggets + 0.2 * faithfulness", engine)
    scores = await reward.score(QUESTION, said("Thimphu"), PASSAGES)
    assert (scores["nuggets"], scores["faithfulness"], scores[reward.name]) == (None, None, None)

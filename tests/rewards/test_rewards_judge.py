import pytest
from fakes import ScriptedEngine

from dragoman.core.errors import EngineFault
from dragoman.rewards.judge import VERDICTS, judge_predictions, verdict


@pytest.mark.parametrize(("said", "score"), [("True", 1.0), ("False", 0.0), ("perhaps", None)])
async def test_the_verdict(said, score):
    engine = ScriptedEngine(lambda prompt, rng: said)
    assert await verdict(engine, "Where?", ["Paris"], "in Paris") == score
    (request,) = engine.requests
    assert request.grammar == VERDICTS and "in Paris" in request.messages[-1]["content"]


async def test_a_failed_judge_is_none_and_an_empty_answer_needs_none():
    engine = ScriptedEngine(lambda prompt, rng: EngineFault("down"))
    rows = [{"question": "q", "answers": ["a"], "answer": a, "scores": {}} for a in ("x", "", None)]
    await judge_predictions(engine, rows)
    assert [row["scores"]["judge"] for row in rows] == [None, 0.0, None]
    assert len(engine.requests) == 1

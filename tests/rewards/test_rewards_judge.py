import pytest
from fakes import ScriptedEngine

from dragoman.core.errors import CannotExpress, EngineFault, PromptTooLong, Refused, UserError
from dragoman.rewards.judge import VERDICTS, judge_predictions, verdict


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("True", 1.0),
        ("False", 0.0),
        ("**False.** The", 0.0),  # a judge that was held by no grammar
        (' "true"', 1.0),
        ("perhaps", None),
        ("Truest", None),
    ],
)
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


@pytest.mark.parametrize("fault", [PromptTooLong, Refused, EngineFault])
async def test_a_judge_that_was_asked_in_vain_leaves_no_fault_which_the_next_run_would_try_to_mend(fault):
    rows = [{"question": "q", "answers": ["a"], "answer": "x", "scores": {}}]
    await judge_predictions(ScriptedEngine(lambda prompt, rng: fault("no")), rows)
    assert rows[0]["scores"]["judge"] is None and ("judge_fault" in rows[0]) == (fault is EngineFault)


async def test_a_judge_that_can_be_asked_for_no_verdict_is_an_error_that_says_why():
    rows = [{"question": "q", "answers": ["a"], "answer": "x", "scores": {}}]
    said = "response_format cannot express a regular expression"
    with pytest.raises(UserError, match=f"evaluate.judge: no answer can be judged: {said}"):
        await judge_predictions(ScriptedEngine(lambda prompt, rng: CannotExpress(said)), rows)

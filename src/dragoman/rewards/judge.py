"""An LLM as judge of answers (C-3PO appendix D.2), constrained to say True or False."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from dragoman.core.errors import ASKED_IN_VAIN, CannotExpress, EngineFault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Constraint, Engine, Request
from dragoman.rewards.base import Trajectory, reward
from dragoman.systems.prompts import load

VERDICTS = Constraint(regex="True|False")
_VERDICT = re.compile(r"\W*(true|false)\b", re.IGNORECASE)
"""Of a judge that was held by no grammar: "**False.** The answer ..."."""


async def verdict(engine: Engine, question: str, answers: Sequence[str], answer: str) -> float | None:
    """1 when the judge takes `answer` for one of `answers`, 0 when not, None when it says neither.

    Raises:
        EngineFault: the judge failed.
    """
    state: dict[str, Any] = {"question": question, "answers": "; ".join(answers), "answer": answer}
    request = Request(load("dragoman.rewards", "judge").messages(state), max_tokens=4, grammar=VERDICTS)
    (result,) = await engine.generate([request])
    said = _VERDICT.match(result.completions[0].text)
    return float(said[1].lower() == "true") if said else None


@reward(bounds=(0, 1))
async def judge(
    question: Question, trajectory: Trajectory, passages: Sequence[Passage], *, judge: Engine
) -> float | None:
    """The verdict of the judge. An empty answer is wrong without asking."""
    if trajectory.answer is None or not question.answers:
        return None
    return await verdict(judge, question.question, question.answers, trajectory.answer) if trajectory.answer else 0.0


async def judge_predictions(engine: Engine, predictions: Sequence[dict[str, Any]]) -> None:
    """Add the score `judge` to each prediction that has an answer; an empty answer is wrong without asking.

    Where the judge failed in a way that may pass, the score is None, and `judge_fault` says why.

    Raises:
        UserError: under its settings the judge can be asked for no verdict at all.
    """

    async def one(row: dict[str, Any]) -> None:
        answer = row["answer"]
        if answer:
            try:
                row["scores"]["judge"] = await verdict(engine, row["question"], row["answers"], answer)
            except CannotExpress as e:
                raise UserError(f"evaluate.judge: no answer can be judged: {e}") from e
            except ASKED_IN_VAIN:
                row["scores"]["judge"] = None
            except EngineFault as e:
                row["scores"]["judge"], row["judge_fault"] = None, str(e)
        else:
            row["scores"]["judge"] = None if answer is None else 0.0

    await asyncio.gather(*map(one, predictions))

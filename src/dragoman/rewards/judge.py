"""An LLM as judge of answers (C-3PO appendix D.2), constrained to say True or False."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from dragoman.core.errors import EngineFault
from dragoman.engines.base import Engine, Grammar, Request
from dragoman.systems.prompts import load

VERDICT = Grammar(regex="True|False")


async def judge(engine: Engine, question: str, answers: Sequence[str], answer: str) -> float | None:
    """1 when the judge takes `answer` for one of `answers`, 0 when not, None when it failed to judge."""
    state: dict[str, Any] = {"question": question, "answers": "; ".join(answers), "answer": answer}
    request = Request(load("dragoman.rewards", "judge").messages(state), max_tokens=4, grammar=VERDICT)
    try:
        (result,) = await engine.generate([request])
    except EngineFault:
        return None
    verdict = result.completions[0].text.strip()
    return {"True": 1.0, "False": 0.0}.get(verdict)


async def judge_predictions(engine: Engine, predictions: Sequence[dict[str, Any]]) -> None:
    """Add the score `judge` to each prediction that has an answer; an empty answer is wrong without asking."""

    async def one(row: dict[str, Any]) -> None:
        answer = row["answer"]
        if answer:
            row["scores"]["judge"] = await judge(engine, row["question"], row["answers"], answer)
        else:
            row["scores"]["judge"] = None if answer is None else 0.0

    await asyncio.gather(*map(one, predictions))

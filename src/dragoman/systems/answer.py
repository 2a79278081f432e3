"""The last step of every system: the frozen LLM answers. One pair of prompts serves all, so that a gain is the proxy's."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.types import Passage, Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.prompts import load, number


async def answer(
    ctx: Context, question: Question, passages: Sequence[Passage], stop: StopReason, *, words: int, max_tokens: int
) -> Outcome:
    """Ask the LLM with the passages, or from memory when there are none."""
    if passages:
        ask = Ask(
            "answer",
            load("dragoman.systems", "answer"),
            view=lambda question, passages: {"question": question, "passages": number(passages, words)},
            max_tokens=max_tokens,
            stop=("\n",),
            final=True,
        )
        text = await ctx.ask(ask, question=question.question, passages=passages)
    else:
        ask = Ask(
            "answer",
            load("dragoman.systems", "answer_from_memory"),
            view=lambda question: {"question": question},
            max_tokens=max_tokens,
            stop=("\n",),
            final=True,
        )
        text = await ctx.ask(ask, question=question.question)
    return Outcome(text.strip(), tuple(passages), stop if text.strip() else StopReason.EMPTY_ANSWER)

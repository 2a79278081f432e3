"""The last step of every system: the frozen LLM answers. One pair of prompts serves all, so that a gain is the proxy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.core.errors import PromptTooLong
from dragoman.core.types import Passage, Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.prompts import Messages, load, number


async def answer(
    ctx: Context,
    question: Question,
    passages: Sequence[Passage],
    stop: StopReason,
    *,
    words: int,
    max_tokens: int,
    history: Messages = (),
) -> Outcome:
    """Ask the LLM with the passages, or from memory when there are none. What `history` has comes before.

    Passages that do not fit into its context are cut to half as many words, until they do.
    """
    while True:
        ask, state = answer_ask(question, passages, words=words, max_tokens=max_tokens)
        try:
            text = await ctx.ask(ask, history=history, **state)
            break
        except PromptTooLong:
            if not passages or words < 2:
                raise
            words //= 2
    return Outcome(text.strip(), tuple(passages), stop if text.strip() else StopReason.EMPTY_ANSWER)


def answer_ask(
    question: Question, passages: Sequence[Passage], *, words: int, max_tokens: int
) -> tuple[Ask, dict[str, Any]]:
    """What the LLM is asked for an answer, and the state that fills its prompt. Passages are cut to so many words."""

    def view(**state: Any) -> dict[str, Any]:
        return state | ({"passages": number(state["passages"], words)} if passages else {})

    ask = Ask(
        "answer",
        load("dragoman.systems", "answer" if passages else "answer_from_memory"),
        view=view,
        max_tokens=max_tokens,
        stop=("\n",),
        final=True,
    )
    return ask, {"question": question.question} | ({"passages": passages} if passages else {})

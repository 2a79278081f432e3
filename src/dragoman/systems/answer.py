"""The last step of every system: the frozen LLM answers. One pair of prompts serves all, so that a gain is the proxy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dragoman.core.errors import PromptTooLong
from dragoman.core.types import Passage, Question
from dragoman.engines.base import AnswerEnd
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
    """Ask the LLM with the passages, or from memory when there are none. What `history` has comes before."""
    asked = partial(answer_ask, question, passages, max_tokens=max_tokens)
    text, _ = await said(ctx, asked, words=words if passages else 0, history=history)
    return Outcome(text, tuple(passages), stop if text else StopReason.EMPTY_ANSWER)


async def said(
    ctx: Context, asked: Callable[..., tuple[Ask, dict[str, Any]]], *, words: int, history: Messages = ()
) -> tuple[str, Messages]:
    """What the LLM says, and the messages that it was shown.

    Passages that do not fit into its context are cut to half as many words, until they do.

    Args:
        asked: what it is asked with passages of at most so many words, and the state that fills the prompt, as `answer_ask`.
        words: most of a passage at first; 0 where there is nothing to cut.
    """
    while True:
        ask, state = asked(words=words)
        try:
            text = await ctx.ask(ask, history=history, **state)
            return text.strip(), ask.messages(state, history)
        except PromptTooLong:
            if words < 2:
                raise
            words //= 2


def answer_ask(
    question: Question, passages: Sequence[Passage], *, words: int, max_tokens: int, final: bool = True
) -> tuple[Ask, dict[str, Any]]:
    """What the LLM is asked for an answer, and the state that fills its prompt. Passages are cut to so many words.

    Args:
        final: whether that answer is the trajectory's.
    """

    def view(**state: Any) -> dict[str, Any]:
        return state | ({"passages": number(state["passages"], words)} if passages else {})

    ask = Ask(
        "answer",
        load("dragoman.systems", "answer" if passages else "answer_from_memory"),
        view=view,
        max_tokens=max_tokens,
        stop=(AnswerEnd("\n"),),
        final=final,
    )
    return ask, {"question": question.question} | ({"passages": passages} if passages else {})

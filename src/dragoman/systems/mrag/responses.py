"""Answerer and reviser of mRAG (section 3.1.7): the frozen LLM, in one dialogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.core.types import Question
from dragoman.engines.base import AnswerEnd
from dragoman.systems.answer import answer_ask, said
from dragoman.systems.base import Ask, Context
from dragoman.systems.mrag.actions import Answer, Revise
from dragoman.systems.mrag.settings import Settings
from dragoman.systems.mrag.state import State
from dragoman.systems.prompts import load


async def respond(settings: Settings, ctx: Context, question: Question, state: State, call: Answer) -> State:
    """The state with a new response. It is not the end of the trajectory: the coordinator is to see it."""

    def asked(words: int) -> tuple[Ask, dict[str, Any]]:
        if settings.answers == "guided":
            return _guided(settings, words), {"question": question.question, "state": state, "call": call}
        return answer_ask(question, state.documents, words=words, max_tokens=settings.answer_tokens, final=False)

    text, shown = await said(ctx, asked, words=settings.passage_words if state.documents else 0)
    return replace(state.responded(text, (*shown, ("assistant", text))), read=state.documents)


async def revise(settings: Settings, ctx: Context, state: State, call: Revise) -> State:
    """The state with its response written anew, in the dialogue that it came of."""
    ask = Ask(
        "revise",
        load(__package__, "reviser"),
        view=lambda suggestion: {"suggestion": suggestion},
        max_tokens=settings.answer_tokens,
        stop=(AnswerEnd("\n"),) if settings.answers == "plain" else (),
    )
    slots = {"suggestion": call.suggestion or "(none)"}
    text = (await ctx.ask(ask, history=state.dialogue, **slots)).strip()
    return state.responded(text, (*ask.messages(slots, state.dialogue), ("assistant", text)))


def _guided(settings: Settings, words: int) -> Ask:
    return Ask(
        "answer",
        load(__package__, "answerer"),
        view=lambda question, state, call: {
            "question": question,
            "information": state.gathered(words),
            "plan": "; ".join(state.plan) or "(none)",
            "guidance": call.guidance or "(none)",
            "important": call.important or "(none)",
        },
        max_tokens=settings.answer_tokens,
        quotes=frozenset({"information"}),
    )

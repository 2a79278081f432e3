"""A conversation becomes one question that can be searched for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.core.errors import PromptTooLong
from dragoman.engines.base import Engine, Request, Result
from dragoman.retrieval.base import well_formed
from dragoman.rollout.record import Call
from dragoman.serving.errors import ApiError
from dragoman.serving.guard import plain
from dragoman.serving.wire import Message
from dragoman.systems.base import Ask
from dragoman.systems.prompts import Messages, load

STANDALONE = Ask(
    "standalone",
    load("dragoman.serving", "standalone"),
    view=lambda history, question: {"history": history, "question": question},
    max_tokens=96,
    stop=("\n",),
)
_SPEAKERS = {"user": "User", "assistant": "Assistant"}
_LEAST_HISTORY = 100
"""Characters. Where not even these fit, the question is too long, and each further call would be in vain."""


@dataclass(frozen=True)
class Conversation:
    question: str
    """The last message."""
    history: str = ""
    """What was said before, a line for each message; empty when nothing was."""

    @classmethod
    def of(cls, messages: Sequence[Message], *, max_question_chars: int, max_history_chars: int) -> Conversation:
        """The conversation in a request. Of a long history, the end is kept.

        Raises:
            ApiError: 400, when it does not end in a question of the user, or that is empty or too long.
        """
        said = [(m.role, plain(well_formed(m.text)).strip()) for m in messages if m.role in _SPEAKERS]
        if not said or said[-1][0] != "user" or not said[-1][1]:
            raise ApiError(400, "no_question", "the last message must be the user's question", param="messages")
        question = said[-1][1]
        if len(question) > max_question_chars:
            message = f"the question has {len(question)} characters; at most {max_question_chars} are answered"
            raise ApiError(400, "question_too_long", message, param="messages")
        lines: list[str] = []
        left = max_history_chars
        for role, text in reversed(said[:-1]):
            line = f"{_SPEAKERS[role]}: {' '.join(text.split())}"
            line = line[max(0, len(line) - left) :]
            left -= len(line)
            if text and line:
                lines.append(line)
        return cls(question, "\n".join(reversed(lines)))

    async def stand_alone(self, llm: Engine, *, max_question_chars: int) -> tuple[str, Call | None]:
        """The question as one that needs no history, and the call of the LLM that made it so, if one was needed.

        Raises:
            PromptTooLong: not even the end of the history fits into the LLM's context, with the question.
            EngineFault: the LLM failed.
        """
        if not self.history:
            return self.question, None
        started, clock = time.time(), time.monotonic()
        messages, result = await self._asked(llm)
        (completion,) = result.completions
        cut = completion.finish_reason == "length"
        said = plain(well_formed(completion.text)).strip()
        call = Call(
            id=STANDALONE.name,
            kind="ask",
            name=STANDALONE.name,
            input=list(messages),
            output=said,
            started=started,
            seconds=time.monotonic() - clock,
            prompt_tokens=result.prompt_tokens,
            completion_tokens=result.completion_tokens,
            truncated=cut,
        )
        return (self.question if cut else said[:max_question_chars] or self.question), call  # half a question is none

    async def _asked(self, llm: Engine) -> tuple[Messages, Result]:
        """What the LLM was shown, and what it made of it. A history that does not fit is halved from its front, until it does,
        or less than `_LEAST_HISTORY` is left of it.

        A bound in characters cannot see to that: 4,000 of Chinese are some 7,400 tokens of a small English model.
        """
        history = self.history
        while True:
            messages = STANDALONE.messages({"history": history, "question": self.question})
            try:
                (result,) = await llm.generate([Request(messages, STANDALONE.max_tokens, stop=STANDALONE.stop)])
            except PromptTooLong:
                left = len(history) // 2
                if left < _LEAST_HISTORY:
                    raise
                history = history[-left:]
            else:
                return messages, result

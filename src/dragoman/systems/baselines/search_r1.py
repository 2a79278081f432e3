"""Search-R1 (Jin et al. 2025, arXiv 2503.09516): a model thinks, searches and answers between tags, in one message.

Its weights are trained for it, so they are the LLM here: serve them behind a URL. What is found is put into the message,
and the model goes on with it. Any other LLM can be prompted the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dragoman.core.text import plain_line
from dragoman.core.types import Passage, Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, check_instruction
from dragoman.systems.prompts import one_line

Tags = tuple[str, str]
ANSWER = ("<answer>", "</answer>")


@dataclass(frozen=True)
class SearchR1(Baseline):
    k: int = 3
    max_searches: int = 4
    """The paper's action budget. What is written after the last one must be the answer."""
    turn_tokens: int = 500
    """Of the text up to a search or the answer."""
    instruction: str = ""
    """What the LLM is told, with `{question}` in it. Released weights want the words they were trained with. Empty: ours."""

    prompt: ClassVar[str] = "search_r1"
    query: ClassVar[Tags] = ("<search>", "</search>")
    information: ClassVar[Tags] = ("<information>", "</information>")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instruction:
            check_instruction(self.instruction, self.prompt, "question")

    async def run(self, question: Question, ctx: Context) -> Outcome:
        so_far, found = "", dict[str, Passage]()
        for searches_left in reversed(range(self.max_searches + 1)):
            said = await ctx.ask(self._ask, question=question.question, so_far=so_far)
            if answer := self._between(ANSWER, said):
                return Outcome(answer, tuple(found.values()))
            if not searches_left:
                break
            if query := self._between(self.query, said):
                passages = await ctx.retrieve(query, k=self.k)
                found |= {passage.id: passage for passage in passages}
                so_far += f"{said}{self.query[1]}{self._told(passages)}"
            else:
                so_far += f"{said}{self._again}"
        return await self.answer(ctx, question, list(found.values()), StopReason.DEPTH_LIMIT)

    @property
    def _ask(self) -> Ask:
        ask = asking(self.prompt, self.turn_tokens, stop=(self.query[1], ANSWER[1]))
        return replace(ask, prompt=replace(ask.prompt, user=self.instruction)) if self.instruction else ask

    def _told(self, passages: Sequence[Passage]) -> str:
        """What a search puts into the message."""
        lines = (f"Doc {i}: {one_line(passage, self.passage_words)}" for i, passage in enumerate(passages, start=1))
        return "\n\n" + self.information[0] + "\n".join(lines) + self.information[1] + "\n\n"

    @property
    def _again(self) -> str:
        """What follows text that neither searches nor answers."""
        return f"\nThat was neither a query between {' and '.join(self.query)} nor an answer between {' and '.join(ANSWER)}.\n"

    @staticmethod
    def _between(tags: Tags, said: str) -> str:
        """What stands after the opening tag. The engine stops before the closing one."""
        found = re.search(rf"{re.escape(tags[0])}(.*?)(?:{re.escape(tags[1])}|$)", said, re.DOTALL)
        return plain_line(found[1]) if found else ""


SYSTEM = SearchR1

"""IRCoT (Trivedi et al. 2023, arXiv 2212.10509): the LLM thinks one sentence at a time, and each is the next query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dragoman.core.types import Passage, Question
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, interleaved, items

_END = re.compile(r"\bthe answer is\b", re.IGNORECASE)
_SENTENCE = re.compile(r".*?(?:[!?]|(?<!\b[A-Z])\.)(?=\s|$)|.+")  # the dot of `J. Doe` or `the U.S.` ends none


@dataclass(frozen=True)
class IRCoT(Baseline):
    max_thoughts: int = 4
    """Sentences at most, each with a search."""
    max_documents: int = 10
    """Passages for the LLM."""
    thought_tokens: int = 48

    async def run(self, question: Question, ctx: Context) -> Outcome:
        searches, stop = [await ctx.retrieve(question.question, k=self.k)], StopReason.DEPTH_LIMIT
        thoughts: list[str] = []
        for _ in range(self.max_thoughts):
            thought = await self._think(question.question, self._kept(searches), thoughts, ctx)
            if not thought or thought in thoughts or _END.search(thought):
                stop = _reason(thought, thoughts)
                break
            thoughts.append(thought)
            searches.append(await ctx.retrieve(thought, k=self.k))
        return await self.answer(ctx, question, self._kept(searches), stop)

    async def _think(self, question: str, kept: list[Passage], thoughts: list[str], ctx: Context) -> str:
        """The next sentence."""
        state: dict[str, Any] = {
            "question": question,
            "passages": self.shown(kept),
            "thoughts": " ".join(thoughts) or "(none)",
        }
        return first_sentence(await ctx.ask(asking("ircot", self.thought_tokens, stop=("\n\n",)), **state))

    def _kept(self, searches: list[list[Passage]]) -> list[Passage]:
        return interleaved(searches, self.max_documents)


def first_sentence(text: str) -> str:
    """The first sentence of the first line with anything in it, without the number of a step."""
    found = _SENTENCE.match(next(iter(items(text)), ""))
    return found[0] if found else ""


def _reason(thought: str, thoughts: list[str]) -> StopReason:
    """Why this thought is the last."""
    if not thought:
        return StopReason.UNREADABLE_REPLY
    return StopReason.REPEATED_QUERY if thought in thoughts else StopReason.ANSWERED


SYSTEM = IRCoT

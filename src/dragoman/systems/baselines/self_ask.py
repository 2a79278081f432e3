"""Self-Ask (Press et al. 2023, arXiv 2210.03350) with a search engine: the LLM asks itself follow-up questions until it can answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.core.types import Passage, Question
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, interleaved

_FOLLOW_UP = re.compile(r"follow[ -]?up(?: question)?\s*:\s*(\S[^\n]*)", re.IGNORECASE)
_FINAL = re.compile(
    r"(?:\b(?:final|the)\s+answer\b[^:.?\n]{0,40}|^\s*answer)\s*:\s*(\S[^\n]*)", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True)
class SelfAsk(Baseline):
    max_questions: int = 4
    """Follow-up questions at most."""
    max_documents: int = 10
    """Passages for the LLM, where it gives no answer of its own."""
    question_tokens: int = 48

    async def run(self, question: Question, ctx: Context) -> Outcome:
        facts: dict[str, str] = {}
        searches: list[list[Passage]] = []
        stop = StopReason.DEPTH_LIMIT
        for _ in range(self.max_questions):
            said = await ctx.ask(
                asking("self_ask", self.question_tokens), question=question.question, facts=_shown(facts)
            )
            follow_up, final = _FOLLOW_UP.search(said), _FINAL.search(said)
            if final and not (follow_up and follow_up.start() < final.start()):
                return Outcome(final[1].strip(), tuple(interleaved(searches, self.max_documents)))
            asked = follow_up[1].strip() if follow_up else ""
            if not asked or asked in facts:
                stop = StopReason.REPEATED_QUERY if asked else StopReason.UNREADABLE_REPLY
                break
            searches.append(await ctx.retrieve(asked, k=self.k))
            facts[asked] = await self.draft(ctx, Question("", asked), searches[-1])  # the intermediate answer
        found = interleaved(searches, self.max_documents) or await ctx.retrieve(question.question, k=self.k)
        return await self.answer(ctx, question, found, stop)


def _shown(facts: dict[str, str]) -> str:
    return "\n".join(f"Follow up: {q}\nIntermediate answer: {a}" for q, a in facts.items()) or "(nothing yet)"


SYSTEM = SelfAsk

"""SuRe (Kim et al. 2024, arXiv 2404.13081): two candidate answers, a summary in favour of each, and the better supported one wins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from dragoman.core.types import Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, items, verdict

CANDIDATES = 2


@dataclass(frozen=True)
class SuRe(Baseline):
    candidate_tokens: int = 48
    """For both candidates."""
    summary_tokens: int = 96

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        state: dict[str, Any] = {"question": question.question, "passages": self.shown(found)}
        candidates = items(await ctx.ask(asking("sure_candidates", self.candidate_tokens), **state))[:CANDIDATES]
        if len(candidates) < CANDIDATES:  # nothing to choose from: standard RAG's answer
            return await self.answer(ctx, question, found, StopReason.UNREADABLE_REPLY)
        summarize = {f"summary {c}": partial(self._summary, state, c) for c in candidates}
        summaries = list((await ctx.parallel(summarize)).values())
        scores, stop = await self._scores(question.question, candidates, summaries, ctx)
        return Outcome(candidates[scores.index(max(scores))], tuple(found), stop)

    async def _summary(self, state: dict[str, Any], candidate: str, ctx: Context) -> str:
        """What the passages say in favour of a candidate."""
        return (await ctx.ask(asking("sure_summary", self.summary_tokens), **state, candidate=candidate)).strip()

    async def _scores(
        self, question: str, candidates: list[str], summaries: list[str], ctx: Context
    ) -> tuple[list[int], StopReason]:
        """For each candidate its validity (2 or 0) and its wins in both orders: they weigh the same, as in the authors' code.

        What cannot be read counts for nobody.
        """
        first, second = summaries
        valid = asking("sure_valid", 4)
        asks = {
            f"valid {i}": partial(_ask, valid, ("true", "false"), question=question, candidate=c, summary=s)
            for i, (c, s) in enumerate(zip(candidates, summaries, strict=True))
        }
        compare = asking("sure_compare", 4)
        for name, one, two in (("forward", first, second), ("backward", second, first)):
            asks[name] = partial(_ask, compare, ("1", "2"), question=question, first=one, second=two)
        said = await ctx.parallel(asks)
        scores = [
            2 * (said["valid 0"] == "true") + (said["forward"] == "1") + (said["backward"] == "2"),
            2 * (said["valid 1"] == "true") + (said["forward"] == "2") + (said["backward"] == "1"),
        ]
        return scores, StopReason.ANSWERED if all(said.values()) else StopReason.UNREADABLE_REPLY


async def _ask(ask: Ask, words: tuple[str, ...], ctx: Context, **state: Any) -> str:
    return verdict(await ctx.ask(ask, **state), *words)


SYSTEM = SuRe

"""Reranking: more passages are found than the LLM shall read, each is judged with the question, and the best are kept.

A cross-encoder gives each passage a score (Nogueira and Cho 2019, arXiv 1901.04085). Where none is configured, the LLM says
for each passage whether it helps, as in the relevance generation of Liang et al. 2022 (arXiv 2211.09110).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from dragoman.core.types import Passage, Question
from dragoman.retrieval.cross_encoder import cross_scores, load_cross_encoder
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, verdict
from dragoman.systems.prompts import one_line


@dataclass(frozen=True)
class Rerank(Baseline):
    candidates: int = 20
    """Passages that are judged; `k` of them are kept."""
    cross_encoder: str = ""
    """A folder or a hub id of sentence-transformers. Empty: the LLM judges."""

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=max(self.candidates, self.k))
        scores, stop = await self._scores(question.question, found, ctx)
        best = sorted(range(len(found)), key=lambda i: (-scores[i], i))  # equal ones stay as they were found
        return await self.answer(ctx, question, [found[i] for i in best[: self.k]], stop)

    async def _scores(self, question: str, found: Sequence[Passage], ctx: Context) -> tuple[list[float], StopReason]:
        """One for each passage, the higher the better, and whether all that the LLM said could be read."""
        if self.cross_encoder:
            texts = [one_line(passage, self.passage_words) for passage in found]
            model = load_cross_encoder(self.cross_encoder)
            return await asyncio.to_thread(cross_scores, model, question, texts), StopReason.ANSWERED
        judges = {str(i): partial(self._helps, question, passage) for i, passage in enumerate(found)}
        said = list((await ctx.parallel(judges)).values())
        return [float(word == "yes") for word in said], (
            StopReason.ANSWERED if all(said) else StopReason.UNREADABLE_REPLY
        )

    async def _helps(self, question: str, passage: Passage, ctx: Context) -> str:
        text = one_line(passage, self.passage_words)
        ask = replace(asking("rerank", 4), quotes=frozenset({"passage"}))
        return verdict(await ctx.ask(ask, question=question, passage=text), "yes", "no")

    def prepared(self) -> Self:
        if self.cross_encoder:
            load_cross_encoder(self.cross_encoder)  # an error before the first question
        return self


SYSTEM = Rerank

"""Reranking: more passages are found than the LLM shall read, each is judged with the question, and the best are kept.

A cross-encoder gives each passage a score (Nogueira and Cho 2019, arXiv 1901.04085). Where none is configured, the LLM says
for each passage whether it helps, as in the relevance generation of Liang et al. 2022 (arXiv 2211.09110): how likely it says
yes is the score, where its engine reports that, and else the word that it wrote.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from dragoman.core.types import Passage, Question
from dragoman.engines.base import MOST_ALTERNATIVES, Completion
from dragoman.retrieval.cross_encoder import cross_scores, load_cross_encoder
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, verdict
from dragoman.systems.prompts import one_line

_UNJUDGED = "-"


@dataclass(frozen=True)
class Rerank(Baseline):
    candidates: int = 20
    """Passages that are judged; `k` of them are kept."""
    cross_encoder: str = ""
    """A folder or a hub id of sentence-transformers. Empty: the LLM judges."""

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=max(self.candidates, self.k))
        scores, stop = await self._scores(question.question, found, ctx)
        # equal ones stay as they were found, and those without a score come last
        best = sorted(range(len(found)), key=lambda i: (math.inf if (s := scores[i]) is None else -s, i))
        return await self.answer(ctx, question, [found[i] for i in best[: self.k]], stop)

    async def _scores(
        self, question: str, found: Sequence[Passage], ctx: Context
    ) -> tuple[Sequence[float | None], StopReason]:
        """One for each passage, the higher the better; None where what the LLM said is no verdict, which the reason then says."""
        if self.cross_encoder:
            texts = [one_line(passage, self.passage_words) for passage in found]
            model = load_cross_encoder(self.cross_encoder)
            return await asyncio.to_thread(cross_scores, model, question, texts), StopReason.ANSWERED
        judges = {str(i): partial(self._helps, question, passage) for i, passage in enumerate(found)}
        scores = list((await ctx.parallel(judges)).values())
        return scores, StopReason.UNREADABLE_REPLY if None in scores else StopReason.ANSWERED

    async def _helps(self, question: str, passage: Passage, ctx: Context) -> float | None:
        text = one_line(passage, self.passage_words)
        ask = replace(asking("rerank", 4), quotes=frozenset({"passage"}), alternatives=MOST_ALTERNATIVES, text=_judged)
        score, _, _ = (await ctx.ask(ask, question=question, passage=text)).partition(" ")
        return None if score == _UNJUDGED else float(score)

    def prepared(self) -> Self:
        if self.cross_encoder:
            load_cross_encoder(self.cross_encoder)  # an error before the first question
        return self


def yes(said: Completion) -> float | None:
    """How likely the LLM says yes rather than no: the probabilities of all spellings that are reported, at one place.

    That is where it wrote one of them, or else the first place where it might have. Where none is reported, the word that it
    wrote counts whole. None: there is no such word either.
    """
    places = [place for place in said.alternatives if any(_word(token) for token, _ in place)]
    written = [place for place in places if _word(max(place, key=lambda alternative: alternative[1])[0])]
    for place in (written or places)[:1]:
        chances = {"yes": 0.0, "no": 0.0}
        for token, logprob in place:
            if word := _word(token):
                chances[word] += math.exp(logprob)
        if total := sum(chances.values()):
            return chances["yes"] / total
    word = _word(said.text)
    return float(word == "yes") if word else None


def _word(text: str) -> str:
    return verdict(text.lstrip("Ġ"), "yes", "no")  # some servers write a token's space so


def _judged(said: Completion) -> str:
    """The score before what was said, as the record keeps both."""
    score = yes(said)
    return f"{_UNJUDGED if score is None else format(score, '.6f')} {said.text}"


SYSTEM = Rerank

"""REPLUG (Shi et al. 2023, arXiv 2301.12652): the LLM reads each passage in a prompt of its own, and the answers' tokens are averaged.

The probability of the next token is the sum, over the passages d, of softmax(s_d) p(token | d, question, answer so far). The
average is of probabilities, not of logits. s_d is the cosine of the passage and the question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from dragoman.core.types import Passage, Question
from dragoman.retrieval.methods.dense import BUNDLED_ENCODER, SCORE_DIGITS
from dragoman.retrieval.store import indexed_text
from dragoman.systems.answer import answer_ask, said
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, aside
from dragoman.systems.baselines.skr import loaded_encoder


@dataclass(frozen=True)
class Replug(Baseline):
    encoder: str = BUNDLED_ENCODER
    """What weighs passages: as `index.encoder` of the method `dense`."""

    averages: ClassVar[bool] = True

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        if not found:
            return await self.answer(ctx, question, found)
        weights = softmax(await aside(cosines, self.encoder, question.question, list(map(indexed_text, found))))
        text, _ = await said(ctx, partial(self._ask, question, found, weights), words=self.passage_words)
        return Outcome(text, tuple(found), StopReason.ANSWERED if text else StopReason.EMPTY_ANSWER)

    def _ask(
        self, question: Question, found: Sequence[Passage], weights: tuple[float, ...], *, words: int
    ) -> tuple[Ask, dict[str, Any]]:
        """The common answer prompt with the first passage, and beside it the same with each of the others."""
        ask, state = answer_ask(question, found[:1], words=words, max_tokens=self.answer_tokens)
        others = tuple(state | {"passages": [passage]} for passage in found[1:])
        return replace(ask, beside=others, weights=weights), state

    def prepared(self) -> Self:
        loaded_encoder(self.encoder)  # an error before the first question
        return self


def softmax(scores: Sequence[float]) -> tuple[float, ...]:
    """Weights in proportion to the exponentials of the scores; they add up to 1."""
    powers = [math.exp(score - max(scores)) for score in scores]
    return tuple(power / sum(powers) for power in powers)


def cosines(encoder: str, question: str, texts: Sequence[str]) -> list[float]:
    """Of the question and each text. The encoder runs in this process, at some 10 ms a text."""
    model = loaded_encoder(encoder)
    query = model.encode_query(question, normalize_embeddings=True, show_progress_bar=False)
    vectors = model.encode_document(list(texts), normalize_embeddings=True, show_progress_bar=False)
    return [round(float(cosine), SCORE_DIGITS) for cosine in vectors @ query]


SYSTEM = Replug

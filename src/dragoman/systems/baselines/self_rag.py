"""Self-RAG (Asai et al. 2023, arXiv 2310.11511): a model says with tokens of its own when to search, and judges what it writes.

Its weights are trained for it, so they are the LLM here: serve them behind a URL. For each passage it writes an answer and
tokens that judge it; the best judged answer stands.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal

from dragoman.core.text import clip
from dragoman.core.types import Passage, Question
from dragoman.engines.base import MOST_ALTERNATIVES, Completion
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking
from dragoman.systems.checks import check_choices
from dragoman.systems.prompts import TITLE_WORDS

SEARCH, NO_SEARCH = "[Retrieval]", "[No Retrieval]"
PARAGRAPH = ("<paragraph>", "</paragraph>")
RELEVANT = {"[Relevant]": 1.0, "[Irrelevant]": 0.0}
SUPPORTED = {"[Fully supported]": 1.0, "[Partially supported]": 0.5, "[No support / Contradictory]": 0.0}
USEFUL = {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)}
_TOKENS = re.compile(
    "|".join(
        map(
            re.escape,
            (SEARCH, NO_SEARCH, "[Continue to Use Evidence]", *PARAGRAPH, *RELEVANT, *SUPPORTED, *USEFUL, "</s>"),
        )
    )
)


@dataclass(frozen=True)
class SelfRAG(Baseline):
    retrieves: Literal["asked", "always", "never"] = "asked"
    """When it searches: where the model asks for it, or whatever it says."""
    segment_tokens: int = 100
    """Of an answer with its tokens."""
    relevant: float = 1.0
    """Weight of the token that says whether the passage is relevant, and so of the next two."""
    supported: float = 1.0
    useful: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)

    async def run(self, question: Question, ctx: Context) -> Outcome:
        begun = NO_SEARCH if self.retrieves == "never" else ""
        said = "" if self.retrieves == "always" else await self._go_on(begun, question.question, ctx)
        if self.retrieves == "never" or (self.retrieves == "asked" and SEARCH not in said):
            return _outcome(said)
        found = await ctx.retrieve(question.question, k=self.k)
        branches = {p.id: partial(self._from_passage, p, question.question) for p in found}
        answers = await ctx.parallel(branches)
        if not answers:
            return _outcome(await self._go_on(NO_SEARCH, question.question, ctx))
        best = max(found, key=lambda p: answers[p.id][0])  # of equal ones the first
        return _outcome(answers[best.id][1], best)

    def critique(self, answer: Completion) -> float:
        """What the model itself says of an answer: each judgement as its expected value, as far as probabilities are known.

        Without them the token that was written counts whole. A judgement that is not given counts nothing. With them the mean
        probability of a token is added, as the authors do.
        """
        groups = ((self.relevant, RELEVANT), (self.supported, SUPPORTED), (self.useful, USEFUL))
        if not answer.alternatives:
            return sum(weight * _written(answer.text, values) for weight, values in groups)
        judged = sum(weight * _expected(answer, values) for weight, values in groups)
        return judged + math.exp(fmean(answer.logprobs or [p[0][1] for p in answer.alternatives if p]))

    async def _go_on(self, begun: str, question: str, ctx: Context) -> str:
        """What the model writes after the beginning of its reply; it stops where a passage is to stand."""
        return await ctx.ask(self._ask, question=question, begun=begun)

    async def _from_passage(self, passage: Passage, question: str, ctx: Context) -> tuple[float, str]:
        """The answer from a passage, after what the model thinks of it."""
        judged = replace(self._ask, alternatives=MOST_ALTERNATIVES, text=lambda c: f"{self.critique(c):.6f} {c.text}")
        critique, _, said = (await ctx.ask(judged, question=question, begun=self._given(passage))).partition(" ")
        return float(critique), said

    @property
    def _ask(self) -> Ask:
        return replace(asking("self_rag", self.segment_tokens, stop=PARAGRAPH[:1]), special=True)

    def _given(self, passage: Passage) -> str:
        title, text = clip(passage.title, TITLE_WORDS), clip(passage.text, self.passage_words)
        return f"{SEARCH}{PARAGRAPH[0]}{title}\n{text}{PARAGRAPH[1]}"


def _expected(answer: Completion, values: dict[str, float]) -> float:
    """The expected value of a judgement, where the first of these tokens was written. Tokens are drawn greedily."""
    for place in filter(None, answer.alternatives):
        if max(place, key=lambda alternative: alternative[1])[0] in values:
            chances = {token: math.exp(logprob) for token, logprob in place if token in values}
            return sum(values[token] * p for token, p in chances.items()) / sum(chances.values())
    return 0.0


def _written(said: str, values: dict[str, float]) -> float:
    """The value of the first of these tokens."""
    written = [(said.index(token), value) for token, value in values.items() if token in said]
    return min(written)[1] if written else 0.0


def _outcome(said: str, *passages: Passage) -> Outcome:
    """The answer without its tokens."""
    answer = " ".join(_TOKENS.sub(" ", said).split())
    return Outcome(answer, passages, StopReason.ANSWERED if answer else StopReason.EMPTY_ANSWER)


SYSTEM = SelfRAG

"""SlimPLM (Tan et al. 2024, arXiv 2402.12052): a small model's draft tells whether the LLM needs a search, and for what.

Three models stand beside the LLM: a small proxy writes the draft, a judge says whether it shows knowledge, and a rewriter takes
question and draft apart into claims with a query each. Queries for claims that are known are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dragoman.core.settings import parse_section
from dragoman.core.types import Passage, Question
from dragoman.engines.settings import EngineParams
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, check_instruction, interleaved

_KNOWN = re.compile(r"<Known\((True|False)\)>")
_PART = re.compile(r"<(Question|Claim)\((.*?)\)>\s*<NeedSearch\((True|False)\)>\s*<Query\((.*?)\)>", re.DOTALL)
ANSWER, JUDGE, REWRITE = "slimplm_answer", "slimplm_judge", "slimplm_rewrite"


@dataclass(frozen=True)
class SlimPLM(Baseline):
    max_documents: int = 10
    """Passages for the LLM."""
    heuristic_tokens: int = 128
    """Of the draft."""
    parse_tokens: int = 512
    """Of what the rewriter writes."""
    instruction: str = ""
    """What judge and rewriter are told, with `{answer}` (the draft) and `{question}` in it. Released weights want the words they
    were trained with. Empty: ours."""
    proxy: dict[str, Any] = field(default_factory=dict)
    """What runs the small model: the keys of the section `llm`. Empty: the LLM writes the draft itself."""
    judge: dict[str, Any] = field(default_factory=dict)
    rewriter: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instruction:
            check_instruction(self.instruction, JUDGE, "answer", "question")
        _ = self.engines  # an error where settings are checked

    @property
    def engines(self) -> Mapping[str, EngineParams]:
        settings = {ANSWER: ("proxy", self.proxy), JUDGE: ("judge", self.judge), REWRITE: ("rewriter", self.rewriter)}
        return {
            ask: parse_section(EngineParams, values, origin=f"systems.slimplm.{key}")
            for ask, (key, values) in settings.items()
            if values
        }

    async def run(self, question: Question, ctx: Context) -> Outcome:
        draft = (await ctx.ask(asking(ANSWER, self.heuristic_tokens), question=question.question)).strip()
        verdict = await self._judged(draft, question.question, ctx)
        if verdict == "True":
            return await self.answer(ctx, question, [])
        said = await ctx.ask(self._told(REWRITE, self.parse_tokens), question=question.question, answer=draft)
        parts = [(kind, text, query.strip()) for kind, text, needed, query in _PART.findall(said) if needed == "True"]
        queries = await self._unknown(parts, ctx)
        found = await ctx.parallel({q: partial(self._search, q) for q in queries or [question.question]})
        stop = StopReason.ANSWERED if verdict and _PART.search(said) else StopReason.UNREADABLE_REPLY
        return await self.answer(ctx, question, interleaved(found.values(), self.max_documents), stop)

    async def _unknown(self, parts: list[tuple[str, str, str]], ctx: Context) -> list[str]:
        """The queries of parts of the question, and of claims that the judge does not call known."""
        claims = {query: text for kind, text, query in parts if kind == "Claim" and query}
        judged = await ctx.parallel({q: partial(self._judged, text, q) for q, text in claims.items()})
        return list(dict.fromkeys(q for kind, _, q in parts if q and (kind == "Question" or judged[q] != "True")))

    async def _judged(self, answer: str, question: str, ctx: Context) -> str:
        """`True` where the answer shows that it is known, `False` where not, empty where neither was said."""
        said = await ctx.ask(self._told(JUDGE, 16), question=question, answer=answer)
        found = _KNOWN.search(said)
        return found[1] if found else ""

    async def _search(self, query: str, ctx: Context) -> list[Passage]:
        return await ctx.retrieve(query, k=self.k)

    def _told(self, name: str, max_tokens: int) -> Ask:
        """What the judge or the rewriter is asked; both are told the same where the setting says what."""
        ask = asking(name, max_tokens)
        if not self.instruction:
            return ask
        return replace(ask, prompt=replace(ask.prompt, system="", user=self.instruction))


SYSTEM = SlimPLM

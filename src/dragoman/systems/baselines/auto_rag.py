"""Auto-RAG (Yu et al. 2024, arXiv 2411.19443): a dialogue of a model with a retriever, in which the model says when it is enough.

Its weights are trained for it, so they are the LLM here: serve them behind a URL. Each turn ends in a query or in the answer.
Where searching comes to no end, the model writes the documents itself, from memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dragoman.core.types import Passage, Question
from dragoman.systems.base import Ask, Context, Outcome, StopReason
from dragoman.systems.baselines import Baseline, asking, check_instruction
from dragoman.systems.prompts import Messages, one_line

_QUERY = re.compile(r"query:\s*(?:\[dense\]\s*)?(\S[^\n]*)", re.IGNORECASE)
_FINAL = re.compile(r"final answer:\s*(\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class AutoRAG(Baseline):
    k: int = 2
    """Passages per search that were not found before."""
    max_searches: int = 10
    max_recalled: int = 5
    """Documents that the model writes itself, where that many searches have not led to an answer."""
    turn_tokens: int = 200
    instruction: str = ""
    """What the LLM is told. Released weights want the words they were trained with. Empty: ours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_instruction(self.instruction, "auto_rag")

    async def run(self, question: Question, ctx: Context) -> Outcome:
        dialogue, found = _Dialogue(self._ask, ctx), dict[str, Passage]()
        said = await dialogue.say(f"Question: {question.question}")
        query = question.question
        for turn in range(1, self.max_searches + self.max_recalled + 1):
            queries = _QUERY.findall(said)
            if not queries and (final := _FINAL.findall(said)):
                return Outcome(final[-1].strip(), tuple(found.values()))
            if not queries and turn > self.max_searches:
                break
            query = queries[-1].strip() if queries else query  # without one the authors search for the last one again
            if turn <= self.max_searches:
                document = await self._found(query, found, ctx)
            else:
                recall = asking("auto_rag_recall", self.turn_tokens, stop=("\n",))
                document = (await ctx.ask(recall, question=question.question, query=query)).strip()
            said = await dialogue.say(f"Retrieved Document_{turn}: {document}")
        if final := _FINAL.findall(said):
            return Outcome(final[-1].strip(), tuple(found.values()))
        return await self.answer(ctx, question, list(found.values()), StopReason.DEPTH_LIMIT)

    @property
    def _ask(self) -> Ask:
        ask = asking("auto_rag", self.turn_tokens)
        return replace(ask, prompt=replace(ask.prompt, system=self.instruction)) if self.instruction else ask

    async def _found(self, query: str, found: dict[str, Passage], ctx: Context) -> str:
        """The first passages for a query that are not in `found` yet, as one text; they are put there."""
        hits = await ctx.retrieve(query, k=self.k + len(found))
        new = [passage for passage in hits if passage.id not in found][: self.k]
        found |= {passage.id: passage for passage in new}
        return " ".join(one_line(passage, self.passage_words) for passage in new)


class _Dialogue:
    """The turns so far. It lives as long as one run."""

    def __init__(self, ask: Ask, ctx: Context) -> None:
        self._ask, self._ctx = ask, ctx
        self._turns: Messages = ()

    async def say(self, said: str) -> str:
        """The model's reply."""
        reply = (await self._ctx.ask(self._ask, history=self._turns, said=said)).strip()
        self._turns += (("user", said), ("assistant", reply))
        return reply


SYSTEM = AutoRAG

"""DRAG (Yue et al. 2025, arXiv 2410.04343): before the question stand training questions, each with its passages and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from dragoman.core.types import Question
from dragoman.corpus.loaders import load_questions
from dragoman.systems.answer import answer_ask
from dragoman.systems.base import Context, Outcome
from dragoman.systems.baselines import Taught
from dragoman.systems.prompts import Messages


@dataclass(frozen=True)
class Drag(Taught):
    shots: int = 3
    """Training questions that are shown: the first of the file."""

    made_by: ClassVar[str] = "set systems.drag.training to a file of training questions, such as data/atlas/train.jsonl"

    async def run(self, question: Question, ctx: Context) -> Outcome:
        turns = await ctx.parallel({shown.id: partial(self._demonstration, shown) for shown in self.learnt})
        history = tuple(turn for demonstration in turns.values() for turn in demonstration)
        found = await ctx.retrieve(question.question, k=self.k)
        return await self.answer(ctx, question, found, history=history)

    async def _demonstration(self, shown: Question, ctx: Context) -> Messages:
        """What the LLM is asked about a training question, and the answer."""
        found = await ctx.retrieve(shown.question, k=self.k)
        ask, state = answer_ask(shown, found, words=self.passage_words, max_tokens=self.answer_tokens)
        return (*ask.messages(state), ("assistant", shown.answers[0]))

    @cached_property
    def learnt(self) -> list[Question]:
        return load_questions(Path(self.training), limit=self.shots)


SYSTEM = Drag

"""InstructRAG, the in-context form (Wei et al. 2025, arXiv 2406.13629): demonstrations explain how passages lead to an answer.

The explanations are the LLM's own: it writes each with the answer to a training question known. Then it explains and
answers other questions the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.systems.base import Context, Outcome, StopReason
from dragoman.systems.baselines import Taught, asking
from dragoman.systems.checks import check_choices
from dragoman.systems.prompts import Messages, load

_ANSWER = re.compile(r"\banswer\s*(?:is)?\s*:\s*(\S[^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class InstructRAG(Taught):
    writes: Literal["answers", "rationales"] = "answers"
    """`rationales` explains the known answers of training questions, which is what `training` is then to point to."""
    shots: int = 2
    """Explanations that are shown: the first of the file."""
    rationale_tokens: int = 128

    made_by: ClassVar[str] = (
        "run `dragoman evaluate --systems instructrag --set instructrag.writes=rationales --set evaluate.split=train "
        "--limit 2 --out results/instructrag` and set systems.instructrag.training to results/instructrag/predictions.jsonl"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)

    async def run(self, question: Question, ctx: Context) -> Outcome:
        found = await ctx.retrieve(question.question, k=self.k)
        state: dict[str, Any] = {"question": question.question, "passages": self.shown(found)}
        if self.writes == "rationales":
            gold = question.answers[0]
            rationale = await ctx.ask(asking("instructrag_explain", self.rationale_tokens), **state, answer=gold)
            return Outcome(f"{rationale.strip()}\nAnswer: {gold}", tuple(found))
        ask = asking("instructrag", self.rationale_tokens + self.answer_tokens)
        said = (await ctx.ask(ask, history=self.learnt, **state)).strip()
        if not said:
            return Outcome("", tuple(found), StopReason.EMPTY_ANSWER)
        answers = _ANSWER.findall(said)
        if not answers:  # the paper takes the whole text
            return Outcome(said, tuple(found), StopReason.UNREADABLE_REPLY)
        return Outcome(answers[-1].strip(), tuple(found))

    def prepared(self) -> Self:
        return self if self.writes == "rationales" else super().prepared()

    @cached_property
    def learnt(self) -> Messages:
        """The demonstrations as turns of a chat, without their passages, as in the paper."""
        prompt = load(__package__, "instructrag_shown")
        turns: list[tuple[str, str]] = []
        for number, row in files.read(Path(self.training)):
            if len(turns) >= 2 * self.shots:
                break
            rationale = row.get("answer")
            if row.get("system") != "instructrag" or not isinstance(rationale, str) or "\nAnswer: " not in rationale:
                raise UserError(f"{self.training}:{number}: not an explanation of a known answer; {self.made_by}")
            turns += [*prompt.messages({"question": row["question"]}), ("assistant", rationale)]
        return tuple(turns)


SYSTEM = InstructRAG

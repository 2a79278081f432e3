"""The frozen LLM as a reader: how often it answers a question with these passages, or with none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.core.identity import FINGERPRINTED, code_hash
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Engine
from dragoman.rewards.answer import scores
from dragoman.systems.answer import answer_ask


@dataclass(frozen=True)
class Reader:
    """Reads with the answer prompts of every system, so that what is easy here is easy there."""

    llm: Engine
    passage_words: int = 100
    max_tokens: int = 48
    draws: int = 1
    """Answers to a question: one is greedy, more are drawn at temperature 1."""
    seed: int = 0

    async def success(
        self, question: str, answers: Sequence[str], passages: Sequence[Passage], parts: Sequence[Sequence[str]] = ()
    ) -> float:
        """The share of draws that contain an acceptable answer or, where it has parts, each of them (cover-EM)."""
        asked, state = answer_ask(
            Question("", question), passages, words=self.passage_words, max_tokens=self.max_tokens
        )
        ask = replace(asked, n=self.draws, temperature=0.0 if self.draws == 1 else 1.0)
        (result,) = await self.llm.generate([ask.request(ask.messages(state), seed=self.seed)])
        right = [scores(c.text, answers, parts)["cover_em"] or 0.0 for c in result.completions]
        return sum(right) / len(right)

    @property
    def fingerprint(self) -> str:
        """What a success depends on beside the question: the LLM, these settings, the answer prompts, and how answers are scored."""
        code = code_hash(__name__, stop=FINGERPRINTED)
        return f"{self.llm.fingerprint} {self.passage_words} {self.max_tokens} {self.draws} {self.seed} {code}"

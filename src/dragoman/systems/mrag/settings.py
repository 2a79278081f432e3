"""The settings of mRAG."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from dragoman.core.errors import UserError
from dragoman.systems.checks import check_at_least_one, check_choices
from dragoman.systems.names import QUESTION_CHARS
from dragoman.systems.options import Bias

Agents = Literal["team", "single"]
Answers = Literal["plain", "guided"]
DecideMode = Literal["text", "marks"]


@dataclass(frozen=True)
class Settings:
    agents: Agents = "team"
    """`single` has no other agents: the coordinator phrases queries itself, and keeps all that they find (an ablation)."""
    planner: bool = True
    """Whether the coordinator may call this agent. Searcher, answerer and finisher are always there."""
    summarizer: bool = True
    reasoner: bool = True
    validator: bool = True
    reviser: bool = True
    answers: Answers = "plain"
    """How the frozen LLM is asked. With `plain` it reads the documents under the prompt that serves every system, so a gain is that
    of the passages found. `guided` is the paper's: it is also told the plan, and what the coordinator wants said."""
    k: int = 2
    """Documents that the searcher reads at a time (appendix C)."""
    max_pages: int = 5
    """How often one query is read on (appendix D.4)."""
    max_reads: int = 10
    """How often the searcher reads in one call, over all its queries."""
    max_calls: int = 30
    """Calls of the coordinator (appendix D.4)."""
    max_repeats: int = 2
    """So many calls of one agent in a row that bring the same end the question."""
    max_documents: int = 20
    """Documents kept; with so many, no search is offered."""
    decide: DecideMode = "text"
    """Whether coordinator, planner, searcher and validator write JSON, as in the paper, or score what they may do: see `marks.py`.
    Summarizer and reasoner always write."""
    bias: Bias | None = field(default=None, hash=False)
    """At marks: added to the logits of an agent's actions, by their type, such as `{searcher: {Keep: 1}}`; see `KINDS` in `marks.py`. It can
    be changed after training."""
    max_candidates: int = 14
    """Queries to choose from, where they are listed."""
    max_items: int = 4
    """Most entries of a list: of a plan, of suggestions, of an analysis, of criteria."""
    line_chars: int = 160
    """Most characters of a query, of an entry of a list, and of other short fields. At marks the question may have 1,000."""
    summary_chars: int = 600
    information_chars: int = 0
    """Most characters of what the coordinator passes on as information. With 0 it writes none: agents get all that was gathered."""
    reason_chars: int = 0
    """Most characters of the reason that coordinator and searcher give for what they do. With 0 they give none."""
    action_tokens: int = 256
    """Most tokens of what an agent writes."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the agents'."""
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_choices(self)
        counts = ("k", "max_pages", "max_reads", "max_calls", "max_documents", "max_candidates", "max_items")
        check_at_least_one(self, *counts, "line_chars", "summary_chars")
        if self.max_repeats < 2:
            raise UserError(f"max_repeats {self.max_repeats}: must be at least 2, since one call repeats nothing")
        for name in ("information_chars", "reason_chars"):
            if self.decide == "marks" and getattr(self, name):
                raise UserError(
                    f"decide: marks scores what is listed and writes no {name}; set it to 0, or decide: text"
                )

    @property
    def question_chars(self) -> int:
        """Most characters of a query that can be the question. At marks it is only rendered."""
        return QUESTION_CHARS if self.decide == "marks" else self.line_chars

    def for_oracle(self) -> Self:
        return replace(self, reason_chars=0, information_chars=0)

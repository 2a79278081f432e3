"""The settings of MAPS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from dragoman.core.errors import UserError
from dragoman.systems.checks import check_at_least_one, check_choices
from dragoman.systems.options import MOST, Bias

Answerer = Literal["llm", "agent"]
Rounds = Literal["judged", "fixed", "drawn"]
Extension = Literal["agent", "pages"]
DecideMode = Literal["text", "marks"]
QueryMode = Literal["free", "span"]


@dataclass(frozen=True)
class Settings:
    k: int = 5
    """Passages per search."""
    max_rounds: int = 3
    """Searches after the one for the question (section 4.2, table 3)."""
    max_documents: int = 20
    """Passages in the pool (section 4.1)."""
    answers: Answerer = "llm"
    """Who answers. With `llm` the frozen LLM does, from the pool, so a gain over other systems is that of the passages found.
    `agent` is the paper's: a third policy, which is trained to answer."""
    rounds: Rounds = "judged"
    """`fixed` has no judge: all rounds are taken (table 3). With `drawn` the question's id decides how many, from none to all:
    pools of every size, for an answer agent to learn from."""
    extension: Extension = "agent"
    """`pages` has no query extension agent: a further round takes the next page of the search for the question."""
    decide: DecideMode = "text"
    """Whether the agents write, as in the paper, or score what they may do, listed: see `marks.py`."""
    bias: Bias | None = field(default=None, hash=False)
    """At marks: added to the logits of an agent's actions, by their type, such as `{judge: {Insufficient: 1}}`; see `KINDS` in `marks.py`. It can
    be changed after training."""
    queries: QueryMode = "free"
    """What is written: see `queries.py`."""
    query_words: int = 8
    """Most keywords of a `free` query (appendix A.1)."""
    query_chars: int = 160
    """Most characters of a query that is copied or listed. The question may have 1,000 where it is listed."""
    max_candidates: int = 14
    """Queries to choose from, where they are listed."""
    max_answers: int = 80
    """Names, dates and numbers that an answer agent chooses from, beside yes and no, where they are listed."""
    shots: int = 0
    """In-context examples per role."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the agents'."""
    query_tokens: int = 48
    answer_chars: int = 160
    """Most characters of the answer agent's answer."""
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least_one(self, "k", "max_rounds", "max_documents", "max_candidates", "max_answers", "query_words")
        if self.max_answers > MOST - 2:
            raise UserError(
                f"max_answers {self.max_answers}: {MOST} options can be listed, and two are yes and no; lower it"
            )
        if self.k > self.max_documents:
            raise UserError(
                f"k {self.k}: one search finds more than the pool may hold; raise max_documents ({self.max_documents}), "
                "or lower k"
            )

    def with_shots(self, shots: int) -> Self:
        return replace(self, shots=shots)

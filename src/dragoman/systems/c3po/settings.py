"""The settings of C-3PO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from dragoman.core.errors import UserError
from dragoman.systems.checks import check_at_least_one, check_choices
from dragoman.systems.evidence import KeepMode
from dragoman.systems.options import Bias

Strategy = Literal["", "NoRetrieval", "Search", "Plan"]
QueryMode = Literal["free", "span", "phrase", "names"]
SelectMode = Literal["numbers", "titles"]
DecideMode = Literal["text", "marks"]
ViewMode = Literal["first", "focused"]
PromptMode = Literal["full", "brief"]


@dataclass(frozen=True)
class Settings:
    k: int = 5
    """Passages per search."""
    max_depth: int = 13
    """Decisions per trajectory (table 7)."""
    max_documents: int = 10
    """Passages kept for the LLM."""
    thoughts: bool = False
    """Whether filter and decision maker write a thought before they act, as in the paper. Tiny models do better without."""
    shots: int = 0
    """In-context examples per role (C-3PO-ICL)."""
    strategy: Strategy = ""
    """Hold the router to one strategy (the ablation of table 3). Empty leaves it the choice."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the proxy's."""
    filter_words: int = 0
    """And to this many in the filter's, whose prompt is by far the longest. 0: as many as `proxy_words`."""
    view: ViewMode = "first"
    """At marks: which words of a passage are read, its first ones, or `focused` those of the sentences that share most words with
    the question. The latter where what leads on stands late: `python -m benchmarks.views` counts it."""
    keep: KeepMode = "passages"
    """At marks: what the filter selects among, and the LLM is shown. Of `sentences`, those of a passage that were kept."""
    decide: DecideMode = "text"
    """Whether the agents write their actions, as in the paper, or score what they may do, listed: see `marks.py`."""
    prompts: PromptMode = "full"
    """`brief` has no instructions: for a proxy that is trained, or reads examples. Either way the question comes first."""
    rewritten: Mapping[str, str] | None = None
    """Instructions in the place of an agent's own, by its name (router, filter, decide): `dragoman gepa` finds some. As text it
    is the whole prompt, in the form of the files in `prompts/`; at marks it is what stands before the question."""
    roadmap: bool = True
    """Whether the LLM writes a plan first. Those of a small LLM are worth nothing."""
    queries: QueryMode = "free"
    """What a query may be: see `queries.py`."""
    select: SelectMode = "numbers"
    """What the filter says of the passages it keeps: their numbers, or for models too small to count their titles."""
    query_chars: int = 240
    """Most characters of a query. The question may have 1,000 where it is called by its name, as at marks."""
    bias: Bias | None = field(default=None, hash=False)
    """At marks: added to the logits of an agent's actions, by their type, such as `{filter: {Keep: 2}}`. More than 0 does it more.

    A warm-up learns how likely it is that a passage is needed. From which chance on it is to be kept depends on what mistakes cost:
    where to miss one costs e^b times as much as to keep a needless one, b is what to add (Elkan 2001). It can be changed after
    training, on dev: docs/training.md. What there is to choose from is `KINDS` in `marks.py`.
    """
    max_candidates: int = 14
    """Queries to choose from, where the next search is chosen from a list: see `candidates` in `queries.py`."""
    thought_chars: int = 400
    action_tokens: int = 96
    roadmap_tokens: int = 96
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least_one(self, "k", "max_depth", "max_documents")
        for name, text in (self.rewritten or {}).items():
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"rewritten.{name}: expected the text of its instructions, found {text!r}")
        if self.max_candidates < 1:
            raise UserError(f"max_candidates is {self.max_candidates}: list at least one query")
        if self.select == "titles" and self.thoughts:
            raise UserError("select: titles is for models too small to write thoughts; leave one of the two out")
        if self.decide == "marks" and self.thoughts:
            raise UserError("decide: marks writes nothing, so no thoughts; set one of the two to another value")
        if self.decide == "text" and self.view != "first":
            raise UserError("view: focused is of lists at marks: set decide: marks, or view: first")
        if self.decide == "text" and self.keep != "passages":
            raise UserError("keep: sentences is of lists at marks: set decide: marks, or keep: passages")
        if self.prompts == "brief" and self.thoughts:
            raise UserError("prompts: brief asks for no thoughts; set prompts: full, or thoughts: false")

    def for_oracle(self) -> Self:
        return replace(self, thoughts=False)

    def with_shots(self, shots: int) -> Self:
        return replace(self, shots=shots)

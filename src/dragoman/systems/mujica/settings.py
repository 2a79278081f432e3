"""The settings of Mujica."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from dragoman.core.errors import UserError
from dragoman.systems.checks import check_at_least_one, check_choices
from dragoman.systems.evidence import KeepMode
from dragoman.systems.options import Bias

QueryMode = Literal["free", "span"]
Answerer = Literal["llm", "planner"]
Environment = Literal["text", "graph"]
Candidates = Literal["search", "gold"]
DecideMode = Literal["text", "marks"]
PlannerContext = Literal["facts", "dialogue"]


@dataclass(frozen=True)
class Settings:
    k: int = 5
    """Passages per search: in a graph, triples of an entity."""
    max_iterations: int = 4
    """Rounds of subquestions per trajectory."""
    max_questions: int = 4
    """Subquestions per round. 1 makes the plan a chain instead of a graph (an ablation of table 4)."""
    max_documents: int = 10
    """Passages kept for the LLM; the plan ends when there are so many."""
    split: bool = True
    """Whether workers read what is found. If not, the planner does, as in iterative RAG (the other ablation of table 4)."""
    answers: Answerer = "llm"
    """Who gives the answer. The paper's planner does. Here the planner only says when, and the LLM answers from the kept passages.
    One prompt then serves every system, so a gain is that of the passages found. At `marks` the planner can answer in a graph
    alone, where answers can be listed."""
    environment: Environment = "text"
    """What is searched: passages of text, or the triples of a knowledge graph (an index of method `graph` of a file of triples).
    In a graph each subquestion is about one entity."""
    candidates: Candidates = "search"
    """`graph` only: the entities that the planner starts from. `search`: those that a search for the question finds. `gold`, as in
    the paper (section 4.1): the question's topic entities, see `topics.py`."""
    context: PlannerContext = "facts"
    """What the planner reads between its turns: a list of all that is known, or, as in the paper, the dialogue itself."""
    memory: bool = False
    """Whether a worker that finds no evidence may answer from its memory, as in the paper."""
    thoughts: bool = False
    """Whether planner and worker write a thought before they act, as in the paper. Tiny models do better without."""
    shots: int = 0
    """In-context examples per role."""
    passage_words: int = 100
    """Each passage is cut to this many words in the LLM's prompt."""
    proxy_words: int = 100
    """And to this many in the proxy's."""
    decide: DecideMode = "text"
    """Whether planner and worker write their actions, as in the paper, or score what they may do, listed: see `marks.py`."""
    keep: KeepMode = "passages"
    """At marks, on text: what a worker selects among, and the LLM is shown. Of `sentences`, those of a passage that were kept."""
    bias: Bias | None = field(default=None, hash=False)
    """At marks: added to the logits of an agent's actions, by their type, such as `{worker: {Found: 1}}`; see `kinds` in `marks.py`. It can
    be changed after training."""
    max_candidates: int = 14
    """Subquestions to choose from, where they are listed."""
    queries: QueryMode = "free"
    """What subquestions and answers may be: see `queries.py`."""
    query_chars: int = 240
    """Most characters of a subquestion and of an answer. At marks the question may have 1,000."""
    sentence_chars: int = 240
    thought_chars: int = 400
    question_tokens: int = 64
    """Of a plan, for each subquestion it may ask."""
    sentence_tokens: int = 96
    answer_tokens: int = 48

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least_one(self, "max_iterations", "max_questions", "max_documents", "max_candidates")
        if self.decide == "marks":
            written = {"queries": "span", "thoughts": False, "context": "facts", "memory": False}
            if self.environment == "text":
                written["answers"] = "llm"
            for name, needed in written.items():
                if (value := getattr(self, name)) != needed:
                    raise UserError(
                        f"decide: marks scores what is listed, and {name}: {value} has to be written; "
                        f"set {name}: {needed}, or decide: text".replace("True", "true").replace("False", "false")
                    )
        if self.keep == "sentences" and (self.decide, self.environment) != ("marks", "text"):
            raise UserError(
                "keep: sentences is of lists of text: set decide: marks and environment: text, or keep: passages"
            )

    def for_oracle(self) -> Self:
        return replace(self, thoughts=False)

    def with_shots(self, shots: int) -> Self:
        return replace(self, shots=shots)

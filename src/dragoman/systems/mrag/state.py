"""What the coordinator of mRAG knows, and what the searcher does in one errand (algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.core.types import Passage
from dragoman.systems.mrag.actions import Verdict
from dragoman.systems.prompts import Messages, number

NOTHING_NEW = "Nothing new was found."
"""What a search says that has brought nothing."""


@dataclass(frozen=True)
class Turn:
    """One call of the coordinator: the agent, the call as it was written, and what the agent said."""

    agent: str
    said: str
    heard: str


@dataclass(frozen=True)
class State:
    """What was gathered for a question so far."""

    turns: tuple[Turn, ...] = ()
    """The history: every call with its output."""
    documents: tuple[Passage, ...] = ()
    """S of algorithm 1, each once, in the order in which they were found."""
    asked: tuple[str, ...] = ()
    """Queries, once for each of their pages that was read."""
    plan: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Summary and analyses."""
    response: str = ""
    """r of algorithm 1."""
    read: tuple[Passage, ...] = ()
    """The documents that the response was written from. Those found since have no part in it."""
    dialogue: Messages = ()
    """The frozen LLM's dialogue that ends in the response, for a reviser to go on with."""
    verdict: Verdict | None = None
    """Of the response as it is now."""

    def repeats(self, most: int) -> bool:
        """Whether the last `most` calls were of one agent, which said the same each time."""
        last = {(turn.agent, turn.heard) for turn in self.turns[-most:]}
        return len(self.turns) >= most and len(last) == 1

    def gathered(self, words: int) -> str:
        """Documents, each cut to so many words, and notes."""
        return "\n".join([number(self.documents, words), *self.notes])

    def responded(self, response: str, dialogue: Messages) -> State:
        return replace(self, response=response, dialogue=dialogue, verdict=None)

    def with_documents(self, found: Sequence[Passage], asked: Sequence[str], most: int) -> State:
        """With more documents. They may support the response, so it is to be checked again."""
        every = {passage.id: passage for passage in (*self.documents, *found)}
        verdict = self.verdict if len(every) == len(self.documents) else None
        return replace(self, documents=tuple(every.values())[:most], asked=tuple(asked), verdict=verdict)


@dataclass(frozen=True)
class Errand:
    """What the searcher was sent for, and what came of it."""

    information: str = ""
    suggestions: tuple[str, ...] = ()
    known: tuple[Passage, ...] = ()
    """Documents that were gathered before."""
    asked: tuple[str, ...] = ()
    """Queries of the whole question, once for each of their pages that was read."""
    found: tuple[Passage, ...] = ()
    """S of algorithm 2."""
    seen: tuple[Passage, ...] = ()
    """What was read and found not to be relevant."""
    turns: Messages = ()
    """The searcher's dialogue after its first message: what it said, and what it was shown."""
    reads: int = 0
    exhausted: bool = False
    """The last page of the query was not full, so there is no further one."""

    @property
    def kept(self) -> tuple[Passage, ...]:
        return (*self.known, *self.found)

    @property
    def query(self) -> str:
        return self.asked[-1]

    def pages(self, query: str) -> int:
        """How many pages of a query were read."""
        return self.asked.count(query)

    def new(self, passages: Sequence[Passage]) -> tuple[Passage, ...]:
        """Those that were not read before."""
        read = {passage.id for passage in (*self.kept, *self.seen)}
        return tuple({passage.id: passage for passage in passages if passage.id not in read}.values())

    def asks(self, query: str, *, last_page: bool) -> Errand:
        """With one more page of a query read."""
        return replace(self, asked=(*self.asked, query), reads=self.reads + 1, exhausted=last_page)

    def said(self, text: str, *, shown: str = "") -> Errand:
        """With a turn of the searcher's dialogue: what it was shown, where that is not the errand itself, and what it said."""
        heard = (("user", shown),) if shown else ()
        return replace(self, turns=(*self.turns, *heard, ("assistant", text)))

    def read(self, passages: Sequence[Passage], relevant: Sequence[bool]) -> Errand:
        """With the verdicts on documents."""
        verdicts = list(zip(passages, relevant, strict=True))
        found = tuple(passage for passage, is_relevant in verdicts if is_relevant)
        seen = tuple(passage for passage, is_relevant in verdicts if not is_relevant)
        return replace(self, found=(*self.found, *found), seen=(*self.seen, *seen))

"""A question on its way through the endpoint, and the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from dragoman.core.types import Passage
from dragoman.rollout.record import Call, Node
from dragoman.serving.conversation import Conversation
from dragoman.systems.base import StopReason


@dataclass
class ServedRequest:
    """One request for an answer, and what has been done for it so far."""

    trace_id: str
    model: str
    conversation: Conversation
    owner: str | None = None
    """The name of the key that asked."""
    user: str | None = None
    """Who asked, as the client says."""
    observe: Callable[[Node | Call], None] = lambda step: None
    steps: list[Node | Call] = field(default_factory=list)
    rewriting: float = 0.0
    """Seconds of the call that made one question of the conversation."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def who(self) -> str:
        """By what a trial chooses it: its user, or by chance where none is named. One key may stand for all users.

        By its question, one that is asked again and again would always be the same policy's, whose figures it would make up.
        """
        return f"{self.owner} {self.user}" if self.user else self.trace_id


@dataclass(frozen=True)
class Answer:
    text: str
    question: str
    passages: tuple[Passage, ...]
    stop: StopReason
    policy: str | None
    degraded: str | None
    """Why standard RAG answered in the proxy's place; None when it did not."""
    is_cut: bool = False
    """The LLM had no more tokens for it."""

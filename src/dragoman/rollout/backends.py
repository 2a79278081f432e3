"""What a system runs on: a frozen LLM, a proxy and a retriever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.core.types import Question
from dragoman.engines.base import Engine
from dragoman.retrieval.base import PerQuestion, Retriever


@dataclass(frozen=True)
class Backends:
    """What a system runs in. `engines` overrides the default engine for single roles or asks, by their name.

    With `oracle`, every role acts as its oracle says, and the proxy is asked nothing.
    """

    llm: Engine
    proxy: Engine
    retriever: Retriever
    engines: Mapping[str, Engine] = field(default_factory=dict)
    oracle: bool = False

    def engine_of(self, name: str, default: Engine) -> Engine:
        return self.engines.get(name, default)

    def retriever_of(self, question: Question) -> Retriever:
        return self.retriever.of(question) if isinstance(self.retriever, PerQuestion) else self.retriever

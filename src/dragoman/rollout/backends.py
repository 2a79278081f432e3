"""What a system runs on: a frozen LLM, a proxy and a retriever."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dragoman.core.types import Question
from dragoman.engines.base import Engine
from dragoman.retrieval.base import PerQuestion, Retriever
from dragoman.rewards import Reward
from dragoman.rewards.composite import Setting


@dataclass(frozen=True)
class Backends:
    """The models and the retriever that a system calls.

    The engine of a role is the one of its name in `engines`, else `proxy`; of an ask, else `llm`.
    """

    llm: Engine
    """The frozen LLM."""
    proxy: Engine
    """The policy: it decides wherever a role acts."""
    retriever: Retriever
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Engines of single roles and asks, by their names."""
    oracle_roles: Collection[str] = ()
    """These roles take oracle actions, out of the gold passages of the question. Where some do, it tells what the others lose."""
    open_judge: Callable[[], Engine] | None = None
    """Gives the judge of rewards, where that is not the frozen LLM. It is opened when a reward asks it, and not before."""

    @property
    def judge(self) -> Engine:
        """What judges answers."""
        return self.open_judge() if self.open_judge else self.llm

    def reward(self, setting: Setting, *, shaping: Setting | None = None) -> Reward:
        """The reward of a setting, which asks the LLM and the judge of these backends. For the rest see `Reward.of`."""
        return Reward.of(setting, self.llm, lambda: self.judge, shaping=shaping)

    def is_oracle(self, role: str) -> bool:
        """Whether a role takes oracle actions."""
        return role in self.oracle_roles

    def engine_of(self, name: str, default: Engine) -> Engine:
        """The engine of a role or an ask."""
        return self.engines.get(name, default)

    def retriever_of(self, question: Question) -> Retriever:
        """The retriever of a question: some search only what belongs to it."""
        return self.retriever.of(question) if isinstance(self.retriever, PerQuestion) else self.retriever

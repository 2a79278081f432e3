"""What a system is made of, and what it may do.

A system is a straight-line coroutine over three awaits: `ctx.act` is a trainable decision of the proxy, `ctx.ask` a call
of a frozen LLM, `ctx.retrieve` a search. It does no I/O of its own, draws no random numbers and keeps no state between
questions. So the rollout can run it again from a log, fork it at any decision, and resume it after a crash.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, Protocol, Self, TypeVar

from dragoman.core.errors import UserError
from dragoman.core.text import has_answer
from dragoman.core.types import Passage, Question, Triple
from dragoman.corpus.chunking import gold_id
from dragoman.engines.base import Completion, Request
from dragoman.engines.settings import EngineParams
from dragoman.systems.grammar import Action, Grammar
from dragoman.systems.options import Options
from dragoman.systems.prompts import Messages, Prompt

T = TypeVar("T")


class StopReason(StrEnum):
    """Why a trajectory ended. The first group ends in an answer; the others are records of what went wrong."""

    ANSWERED = "answered"
    DEPTH_LIMIT = "depth_limit"  # answered with what there was, because no more decisions were allowed
    DOCUMENT_LIMIT = "document_limit"  # answered with what there was, because no more passages were allowed
    CIRCULAR_PLAN = "circular_plan"  # answered with what there was, because only that was asked again
    REPEATED_QUERY = "repeated_query"  # answered with what there was, because the next search was an old one
    REPEATED_CALL = (
        "repeated_call"  # answered with what there was, because an agent was called again and again for the same
    )
    EMPTY_POOL = "empty_pool"  # answered from memory, because no search found anything
    UNREADABLE_REPLY = (
        "unreadable_reply"  # answered without what the LLM was asked on the way, as that could not be read
    )

    INVALID_ACTION = "invalid_action"  # the policy's text is no action
    TRUNCATED_ACTION = "truncated_action"  # the policy ran out of tokens before its action was complete
    HALLUCINATED_INDEX = "hallucinated_index"  # the policy selected a passage that is not there
    EMPTY_ANSWER = "empty_answer"  # the LLM said nothing

    NOT_ASKED = "not_asked"  # only the decisions were wanted, so the LLM was not asked for the answer
    NODE_LIMIT = "node_limit"  # the tree has no more decisions to give to this branch
    TOKEN_LIMIT = "token_limit"  # nor tokens
    PROMPT_TOO_LONG = "prompt_too_long"  # a model would have had to read more than its context holds
    REFUSED = "refused"  # a filter of a model's server would not have the prompt read, or the completion written

    ENGINE_FAULT = "engine_fault"
    RETRIEVER_FAULT = "retriever_fault"
    SYSTEM_FAULT = "system_fault"  # a bug in the system's own code; the log has the traceback

    @property
    def is_answered(self) -> bool:
        """It is of the first group: the answer stands, whatever kept the system from searching on."""
        return self in (
            StopReason.ANSWERED,
            StopReason.DEPTH_LIMIT,
            StopReason.DOCUMENT_LIMIT,
            StopReason.CIRCULAR_PLAN,
            StopReason.REPEATED_QUERY,
            StopReason.REPEATED_CALL,
            StopReason.EMPTY_POOL,
            StopReason.UNREADABLE_REPLY,
        )

    @property
    def is_invalid(self) -> bool:
        """What the policy wrote is no action: it ends with an empty answer, which nobody gave."""
        return self in (StopReason.INVALID_ACTION, StopReason.TRUNCATED_ACTION, StopReason.HALLUCINATED_INDEX)

    @property
    def is_fault(self) -> bool:
        """The machinery failed, not the policy: such a trajectory says nothing about it and is not scored."""
        return self in (StopReason.ENGINE_FAULT, StopReason.RETRIEVER_FAULT, StopReason.SYSTEM_FAULT)

    @property
    def is_cut(self) -> bool:
        """A limit or a filter ended it, which says nothing about the policy either. Another run would come to the same end."""
        return self in (
            StopReason.NOT_ASKED,
            StopReason.NODE_LIMIT,
            StopReason.TOKEN_LIMIT,
            StopReason.PROMPT_TOO_LONG,
            StopReason.REFUSED,
        )


@dataclass(frozen=True)
class Gold:
    """What an oracle knows of a question, and a policy does not."""

    ids: frozenset[str]
    """Its gold passages. A chunk counts for the one that it was cut from."""
    find: Callable[[str, int], Awaitable[Sequence[str]]]
    """The ids of the k passages that a query would find, best first; of a gold passage's chunk the gold passage's."""
    answers: tuple[str, ...] = ()
    triples: tuple[Triple, ...] = ()
    """The facts behind the answer, where they are known."""
    parts: tuple[tuple[str, ...], ...] = ()
    """Of each thing that is asked for its names, where it is several."""

    def is_answered(self, text: str) -> bool:
        """Whether a text has a gold answer or, where several things are asked for, a name of each."""
        return all(any(has_answer(text, name) for name in names) for names in self.parts or (self.answers,))

    def has(self, passage: Passage) -> bool:
        """Whether it is gold."""
        return gold_id(passage.id, self.ids) is not None

    def missing(self, passages: Iterable[Passage]) -> frozenset[str]:
        """The gold passages that are not among these."""
        return self.ids - {gold_id(passage.id, self.ids) for passage in passages}

    async def finding_first(self, queries: Sequence[str], k: int, missing: Collection[str]) -> list[str]:
        """Those of `queries` that have a missing passage earliest among their k, all that are as good; none if none has."""
        ranks: dict[str, float] = {}
        for query in queries:
            found = await self.find(query, k)
            ranks[query] = min((place for place, id in enumerate(found) if id in missing), default=math.inf)
        least = min(ranks.values(), default=math.inf)
        return [query for query, rank in ranks.items() if rank == least < math.inf]


@dataclass(frozen=True)
class Role:
    """One agent of a system: its instructions, and the actions it may take in a given state.

    `grammar` receives the same keyword arguments as `ctx.act`, since what may be said can depend on the state (there
    are only so many passages to select from). `view` turns that state into the texts of the prompt's slots. `oracle`
    gives the right actions where the gold passages are known: trajectories to warm up on. With `options` the policy
    scores what may be done instead of writing it; several actions of an oracle are then equally right.
    """

    name: str
    prompt: Prompt
    grammar: Callable[..., Grammar]
    view: Callable[..., dict[str, Any]]
    max_tokens: int
    shots: int = 0
    stop: tuple[str, ...] = ()
    oracle: Callable[..., Awaitable[Sequence[Action]]] | None = None
    options: Callable[..., Options] | None = None

    def messages(self, state: dict[str, Any], history: Messages = ()) -> Messages:
        return self.prompt.messages(self.view(**state), shots=self.shots, history=history)


@dataclass(frozen=True)
class Ask:
    """A question put to the frozen LLM. `name` picks another engine than the default LLM where one is configured.

    Raises:
        ValueError: there is nothing to draw, or it would be the same text `n` times.
    """

    name: str
    prompt: Prompt
    view: Callable[..., dict[str, Any]]
    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    """0 is greedy."""
    n: int = 1
    """How many texts to draw; `Context.ask_all` returns all of them."""
    seed: int = 0
    """Another seed draws other texts, in the same rollout for the same question."""
    final: bool = False
    """What it says is the trajectory's answer. A rollout that wants decisions alone leaves it out, and gets an empty text."""
    quotes: frozenset[str] = frozenset({"passages"})
    """The slots that hold passages, where the prompt has them: the endpoint sets these between marks."""
    special: bool = False
    """Whether special tokens stay in the text: see `Request`."""
    alternatives: int = 0
    """How many alternatives of each token `text` wants to see: see `Request`."""
    text: Callable[[Completion], str] = attrgetter("text")
    """What a completion comes to as a text, where that is more than what was written."""
    beside: tuple[Mapping[str, Any], ...] = ()
    """Further states, each of which fills the prompt once more. The LLM goes on with all of these prompts alike: each token is
    of the average of their distributions. A system that asks so says it in `averages`."""
    weights: tuple[float, ...] = ()
    """Of that average: one for the state of the ask, and one for each beside it. They add up to 1."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.temperature < 0 or (self.n > 1 and self.temperature == 0):
            raise ValueError(f"ask {self.name!r}: cannot draw {self.n} texts at temperature {self.temperature}")

    def messages(self, state: dict[str, Any], history: Messages = ()) -> Messages:
        return self.prompt.messages(self.view(**state), history=history, quotes=self.quotes)

    def prompts(self, state: dict[str, Any], history: Messages = ()) -> tuple[Messages, ...]:
        """The messages for `state`, and then those for the states beside it."""
        return tuple(self.messages(dict(each), history) for each in (state, *self.beside))

    def request(self, messages: Messages, *beside: Messages, seed: int = 0) -> Request:
        """What an engine is asked with these messages, and with those beside them."""
        return Request(
            messages,
            self.max_tokens,
            n=self.n,
            temperature=self.temperature,
            stop=self.stop,
            seed=seed,
            special=self.special,
            alternatives=self.alternatives,
            beside=beside,
            weights=self.weights if beside else (),
        )


@dataclass(frozen=True)
class Outcome:
    """How a trajectory ended: the answer, the passages it rests on, and why it stopped there."""

    answer: str
    passages: tuple[Passage, ...] = ()
    stop: StopReason = StopReason.ANSWERED


class Context(Protocol):
    """The backends as a system sees it."""

    async def act(self, role: Role, *, history: Messages = (), **state: Any) -> Action:
        """Let the policy of `role` decide. May end the trajectory, when what it says is no action."""
        ...

    async def ask(self, ask: Ask, *, history: Messages = (), **state: Any) -> str:
        """Let the frozen LLM write. Of several texts, the first."""
        ...

    async def ask_all(self, ask: Ask, *, history: Messages = (), **state: Any) -> tuple[str, ...]:
        """Let the frozen LLM write `ask.n` texts."""
        ...

    async def retrieve(self, query: str, *, k: int, page: int = 0) -> list[Passage]:
        """The `page`-th group of `k` passages for `query`, best first."""
        ...

    async def parallel(self, branches: Mapping[str, Callable[[Context], Awaitable[T]]]) -> dict[str, T]:
        """Run named branches at once, each on a context of its own, and wait for all of them."""
        ...


class System:
    """An agent system. Implementations are frozen dataclasses whose fields are their settings."""

    averages: ClassVar[bool] = False
    """Whether it lets the LLM go on with several prompts at once, which no engine can but transformers."""

    turned_after_training: ClassVar[frozenset[str]] = frozenset()
    """Settings that may differ from those that a policy was trained with. After RL that is warned of."""

    views: ClassVar[int] = 1
    """Raised when roles are shown the same states otherwise, by no setting or prompt: policies of before are refused then."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """The trainable roles, in the order of the paper; empty for a baseline."""
        return ()

    @property
    def trained_prompts(self) -> Mapping[str, Prompt]:
        """All that a policy is trained to read: those of the roles, and of others in which a role goes on."""
        return {role.name: role.prompt for role in self.roles}

    async def run(self, question: Question, ctx: Context) -> Outcome:
        """Answer the question.

        Raises:
            UserError: the system's class does not say how.
        """
        raise UserError(
            f"{type(self).__module__}.{type(self).__name__}: a system needs `async def run(self, question, ctx)`"
        )

    def check(self, question: Question) -> None:
        """Look at a question before any is asked.

        Raises:
            UserError: it lacks what the system's settings need of it.
        """

    @property
    def engines(self) -> Mapping[str, EngineParams]:
        """What runs single asks in the place of the frozen LLM, by their names; empty where the system has no such settings.

        Raises:
            UserError: a setting is not usable.
        """
        return {}

    def prepared(self) -> Self:
        """The system ready to run. What its settings point to is read here, once, since `run` reads nothing.

        Raises:
            UserError: it cannot be read, with what to do.
        """
        return self

    def for_oracle(self) -> Self:
        """The system as an oracle runs it: one that writes thoughts has to do without, since an oracle has none."""
        return self

    def with_shots(self, shots: int) -> Self:
        """The system with so many in-context examples for each role."""
        return self

    @property
    def instructions(self) -> Mapping[str, str]:
        """What tells each role its task, by the role's name: the texts that may be rewritten. Empty where there are none."""
        return {}

    def with_instructions(self, texts: Mapping[str, str]) -> Self:
        """The system with other instructions for these roles.

        Raises:
            UserError: there is no such role, a text leaves out what it has to hold, or the system takes none.
        """
        raise UserError(f"{type(self).__name__} takes no other instructions than its own")


@dataclass(frozen=True)
class Ablation:
    """A variant of a trained system: another policy, other settings of the system, or another way to train."""

    what: str
    policy: str = "rl"
    """The stage whose policy it runs with; empty for the untrained base."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    single: bool = False
    """Train it first: with single trajectories and the system's reward, instead of trees and credit."""
    warm_up: bool = False
    """Warm it up first, since a policy that was trained with other settings knows nothing of these. It is then compared with
    the trained system's warm-up, and `policy` does not count."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that warm-up, by their dotted keys, such as `sft.rounds`."""

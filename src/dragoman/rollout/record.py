"""Episodes: everything that happened for one question, written as one JSON line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.core.errors import Fault, UserError
from dragoman.systems.base import StopReason

SCHEMA = 1


class Record(BaseModel):
    """A part of an episode. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


R = TypeVar("R", bound=Record)


def validated(kind: type[R], row: Any, place: str, what: str) -> R:
    """A row of a file as a record.

    Args:
        place: the file and its line.
        what: the record is, in words.

    Raises:
        UserError: it is none.
    """
    try:
        return kind.model_validate(row)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{place}: not {what} ({where}: {first['msg']})") from None


class Marked(Record):
    """How an action was chosen among listed options, by their logits, instead of being written."""

    options: list[str]
    many: bool  # a selection, in which each option is in or out by itself; else a choice of one
    kinds: list[str] = []  # of a choice, the type of action that each option is, such as `Search`
    taken: list[int]  # the places of the options that make the action, from 0
    logits: list[float] = []  # one an option: the policy's, and `bias` with it; empty where an oracle acted
    bias: list[float] = []  # the part of them that the system's settings have added; empty where they add nothing
    positions: list[int] = []  # where in the prompt's token ids each was read
    right: list[
        list[int]
    ] = []  # what an oracle would have taken here, one list for each way that is as good; may be unknown

    @property
    def probabilities(self) -> list[float]:
        """Of each option: to be the one that is taken, or to be in a selection. Empty where an oracle acted."""
        if self.many:
            return [1 / (1 + math.exp(-z)) for z in self.logits]
        top = max(self.logits, default=0.0)
        weights = [math.exp(z - top) for z in self.logits]
        return [weight / sum(weights) for weight in weights]


class Node(Record):
    """One action, taken by one role in one state.

    Token ids and log-probabilities are those of the engine; nothing is ever tokenized again. `parent` is the node
    before it in its own branch, None at the root. `joins` are the last nodes of the parallel branches that ended just
    before it. `merged` counts further draws at this state that gave the same action. `logprobs` has a number for each token
    written or, at marks, for each choice made: one for the option taken, or for each option of a selection.
    """

    id: str
    parent: str | None
    joins: list[str] = []
    point: str  # the state it was taken in: siblings share it
    role: str
    depth: int  # decisions up to and including this one, along its own branch
    prompt: list[tuple[str, str]]
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    text: str
    action: dict[str, Any] | str | None  # None when the text is no action; `stop` then says why
    stop: StopReason | None = None
    forced: bool = False  # the policy did not choose its kind: the exploration or an oracle did
    forced_to: str = ""  # the kind of a forced action that was written, whatever became of its text
    marked: Marked | None = None  # None where the action was written; token ids of a completion are there only then
    probability: float | None = None  # of the action under the policy, where it is known exactly, as it is at marks
    inclusion: float = 1.0  # the chance that it was to be drawn among its siblings, where these leave actions out
    grammar: dict[str, str | None] | None = None  # what may be said in this state: fields of engines.base.Constraint
    merged: int = 0
    temperature: float
    started: float  # unix time
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def kind(self) -> str:
        """The type of its action, such as `Search`; empty when that is prose, or no action."""
        return str(self.action["type"]) if isinstance(self.action, dict) else ""

    @property
    def draws(self) -> int:
        """How often it was drawn at its state."""
        return 1 + self.merged


class Call(Record):
    """One call that is not a decision: of the frozen LLM (`ask`) or of the retriever (`search`).

    Several trajectories may share it: equal calls are made once in a tree.
    """

    id: str
    kind: str
    name: str  # the ask's name, or "search"
    input: list[tuple[str, str]] | dict[str, Any]
    output: str | list[str]  # the text, or several; or the ids of the passages
    started: float  # unix time
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: bool = False  # the answer was known from an earlier run: its seconds are not those of the LLM
    truncated: bool = False  # the LLM had no more tokens for a text of it


class Trajectory(Record):
    """One way through the tree: root to leaf, or all branches of it where a system works in parallel."""

    nodes: list[str]
    steps: list[str]  # nodes and calls, in the order in which the system made them
    answer: str | None
    passages: list[str]
    stop: StopReason
    error: str | None = None
    rewards: dict[str, float | None] = {}
    reward_fault: str = ""  # a call of a reward that failed, such as its judge's: the next run scores it again


class Episode(Record):
    """All trajectories of one question under one configuration. `key` is the content hash of both.

    Nodes stand by depth and point, and siblings in the order in which they were drawn: a run takes the first of them
    where its choices name no other.
    """

    schema_version: int = SCHEMA
    key: str
    asked_by: str | None = None  # of a question that was served: the name of the API key, where one was asked for
    question: dict[str, Any]
    system: str
    config: dict[str, Any]
    nodes: list[Node]
    calls: list[Call]
    trajectories: list[Trajectory]
    started: float  # unix time
    seconds: float

    @property
    def faulty(self) -> bool:
        """An engine, the retriever, the system or a reward failed in it. It is kept as a record, and rolled out again by the next run."""
        return any(t.stop.is_fault or t.reward_fault for t in self.trajectories)

    @property
    def broken(self) -> bool:
        """The system failed in it, maybe by what an engine said: with the same replies it would fail again."""
        return any(t.stop is StopReason.SYSTEM_FAULT for t in self.trajectories)

    @property
    def too_long(self) -> bool:
        """A model could not read a prompt in it, so an answer is missing that one with a longer context may give."""
        return any(t.stop is StopReason.PROMPT_TOO_LONG for t in self.trajectories)

    @property
    def tokens(self) -> int:
        """Tokens that engines have read and written for it. A prompt of several draws counts once."""
        prompts = {n.point: n.prompt_tokens for n in self.nodes}
        return (
            sum(prompts.values())
            + sum(n.completion_tokens for n in self.nodes)
            + sum(c.prompt_tokens + c.completion_tokens for c in self.calls)
        )


MOST_FAULTY = 0.1
"""Share of trajectories that may have met a fault which another try could mend, before what is left says too little."""


def check_outage(episodes: Sequence[Episode]) -> None:
    """Whether what is left beside the faults says something of a policy, or of a stage's input.

    Raises:
        Fault: it does not. An engine, the retriever, the system or a reward failed in every episode; or any of them but the
            system, which would fail again, in more than `MOST_FAULTY` of the trajectories. A later try asks those questions again.
    """
    trajectories = [t for episode in episodes for t in episode.trajectories]
    met = [t for t in trajectories if t.stop.is_fault or t.reward_fault]
    outage = sum(t.stop is not StopReason.SYSTEM_FAULT for t in met)
    if met and (all(episode.faulty for episode in episodes) or outage > MOST_FAULTY * len(trajectories)):
        asked, faulty = ({e.question["id"] for e in some} for some in (episodes, [e for e in episodes if e.faulty]))
        count = "every question" if faulty == asked else f"{len(faulty)} of {len(asked)} questions"
        raise Fault(f"{count} met a fault, the first: {met[0].error or met[0].reward_fault}")


def action_to_json(action: Any) -> dict[str, Any] | str:
    """An action as its type and fields, or as its text where it is prose."""
    if isinstance(action, str):
        return action
    fields = {"type": type(action).__name__, **dataclasses.asdict(action)}
    as_stored: dict[str, Any] = json.loads(json.dumps(fields))  # tuples are lists, in memory as on disk
    return as_stored

"""From episodes to samples: one row for each action, which is all that a trainer sees of a rollout.

Token ids are the engine's own. A sample also carries the grammar that it was drawn under. The policy under a grammar is the
model's distribution over the allowed tokens alone, and a trainer must differentiate that one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.engines.base import Constraint
from dragoman.rollout.credit import credit
from dragoman.rollout.record import Episode, Node


@dataclass(frozen=True, slots=True)
class Marks:
    """The options that an action was chosen from; see `rollout.record.Marked`."""

    positions: tuple[int, ...]
    """Where in the prompt's token ids each is read."""
    many: bool
    taken: tuple[int, ...]
    right: tuple[tuple[int, ...], ...] = ()
    bias: tuple[float, ...] = ()
    """What the system has added to the logit of each option; empty where it adds nothing, and where an oracle's label or a forced
    choice is imitated."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One action of one role, with its credit.

    Siblings are the actions taken in one state; they share their `group`. `logprobs` are the engine's for the tokens of
    `completion_ids`, under temperature and grammar. An action at marks has no such tokens; its `logprobs` are exact.
    """

    episode: str
    question: str
    node: str
    group: str
    role: str
    kind: str
    """The type of the action, such as `Search`. Of a text that is no action it is the type that was forced, else empty."""
    depth: int
    forced: bool
    """The kind of the action was forced by the deterministic rollout, not chosen by the policy."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    grammar: Constraint | None
    credit: float
    cost: float = 0.0
    """What the price of the steps below has taken off `credit`, in expectation."""
    draws: int = 1
    """How often the policy drew it at its state."""
    probability: float | None = None
    """Of the action under the policy that acted, where it is known exactly."""
    inclusion: float = 1.0
    """The chance that it was to be drawn among its siblings, where these leave actions out."""
    marks: Marks | None = None
    """None where the action was written."""

    @property
    def raw_credit(self) -> float:
        """Its credit by the reward alone, without the price."""
        return self.credit + self.cost

    @property
    def length(self) -> int:
        """How many choices make up the action: tokens, options that are in or out, or the one option taken."""
        if self.marks is None:
            return len(self.completion_ids)
        return len(self.marks.positions) if self.marks.many else 1

    @property
    def tokens(self) -> int:
        """Prompt and completion together."""
        return len(self.prompt_ids) + len(self.completion_ids)


def samples(episode: Episode, reward: str, *, price: float = 0.0, need_ids: bool = True) -> list[Sample]:
    """The samples of an episode, with the credits of `credit`.

    Nodes without credit give none. Nor do nodes without token ids, as of servers that report none, where `need_ids`.
    """
    raw = credit(episode, reward)
    credits = credit(episode, reward, price=price)
    return [
        dataclasses.replace(sample_of(episode, node, value), cost=(raw[node.id] or 0.0) - value)
        for node in episode.nodes
        if (value := credits[node.id]) is not None
        and (not need_ids or (node.prompt_ids and (node.completion_ids or node.marked)))
    ]


def sample_of(episode: Episode, node: Node, credit: float) -> Sample:
    """A node of an episode as a sample, with this credit, and no cost in it."""
    return Sample(
        episode=episode.key,
        question=str(episode.question["id"]),
        node=node.id,
        group=f"{episode.key}/{node.point}",
        role=node.role,
        kind=node.kind or node.forced_to,
        depth=node.depth,
        forced=node.forced,
        prompt_ids=tuple(node.prompt_ids),
        completion_ids=tuple(node.completion_ids),
        logprobs=tuple(node.logprobs),
        temperature=node.temperature,
        grammar=Constraint(**node.grammar) if node.grammar else None,
        credit=credit,
        draws=node.draws,
        probability=node.probability,
        inclusion=node.inclusion,
        marks=_marks(node),
    )


def _marks(node: Node) -> Marks | None:
    if node.marked is None:
        return None
    m = node.marked
    return Marks(tuple(m.positions), m.many, tuple(m.taken), tuple(map(tuple, m.right)), tuple(m.bias))


def write_samples(path: Path, rows: Sequence[Sample]) -> None:
    """Write samples as Parquet, all or nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("episode", "question", "node", "group", "role", "kind")),
            ("depth", pa.int32()),
            ("forced", pa.bool_()),
            ("prompt_ids", pa.list_(pa.int32())),
            ("completion_ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float32())),
            ("temperature", pa.float64()),
            ("grammar", pa.string()),
            ("credit", pa.float64()),
            ("cost", pa.float64()),
            ("draws", pa.int32()),
            ("probability", pa.float64()),
            ("inclusion", pa.float64()),
            ("marks", pa.string()),
        ]
    )
    table = pa.Table.from_pylist([_row(s) for s in rows], schema=schema)
    with files.replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_samples(path: Path) -> list[Sample]:
    """Read samples from Parquet.

    Raises:
        UserError: no such file, or not a file of samples.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"{path}: no such file; `dragoman rollout` and `dragoman seeds` write samples")
    try:
        rows = pq.read_table(path, columns=[f.name for f in dataclasses.fields(Sample)]).to_pylist()
    except (pa.ArrowInvalid, KeyError, OSError) as e:
        raise UserError(f"{path}: not a file of samples ({str(e).splitlines()[0]})") from None
    return [_sample(row) for row in rows]


def _row(sample: Sample) -> dict[str, Any]:
    row = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample)}
    for name in ("grammar", "marks"):
        row[name] = None if row[name] is None else json.dumps(dataclasses.asdict(row[name]))
    return row


def _sample(row: dict[str, Any]) -> Sample:
    grammar = None if row["grammar"] is None else Constraint(**json.loads(row["grammar"]))
    marks = None
    if row["marks"] is not None:
        marks = Marks(**{name: _tuples(value) for name, value in json.loads(row["marks"]).items()})
    lists = {name: tuple(row[name]) for name in ("prompt_ids", "completion_ids", "logprobs")}
    return Sample(**{**row, **lists, "grammar": grammar, "marks": marks})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

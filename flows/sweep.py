"""A command under each of several settings, on demand: a folder for each point of the grid, and one table of them all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import State, flow
from prefect.states import Completed, Failed
from pydantic import Field, JsonValue, NonNegativeFloat, PositiveInt

from dragoman.core import files
from dragoman.core.text import folder_name
from dragoman.evaluation.matrix import NOTHING, Table
from dragoman.evaluation.report import interval
from flows.commands import HOUR, CommandFailed, flags, publish
from flows.side_by_side import Runner, side_by_side

Command = Literal["rollout", "seeds", "sft", "rl", "gepa", "evaluate", "bench"]
Grid = Annotated[Mapping[str, Annotated[Sequence[JsonValue], Field(min_length=1)]], Field(min_length=1)]

SCORES = {"rollout": "reward", "seeds": "reward", "evaluate": "cover_em", "bench": "cover_em"}
SCORE_OF_TRAINING = "dev_reward"
FAILED = "failed"


@flow(name="sweep", timeout_seconds=72 * HOUR)
async def sweep(
    command: Command,
    out: str,
    settings: Grid,
    options: Mapping[str, bool | int | float | str] = {},
    runner: Runner = "threads",
    gpus: NonNegativeFloat = 0,
    at_once: PositiveInt = 1,
    score: str | None = None,
) -> State:
    """Run the command at each point of a grid: `{"rl.price": [0, 0.1]}` is `--set rl.price=0`, then `--set rl.price=0.1`.

    Each point has a folder in `out`, where the command goes on if this is run again; `out/table.md` has all their scores.
    A point that fails keeps no other from its end. `options` are those of the command, the same for all points.
    `runner` starts so many points `at_once`; a cluster that is named has its own number. `gpus` is what Ray reserves for each.
    `score` is a name in the `metrics.json` of the command, in the place of its usual one.
    """
    points = [Point(Path(out), dict(zip(settings, at, strict=True))) for at in product(*settings.values())]
    names = [point.folder.name for point in points]
    if len({*names}) < len(names):
        raise ValueError(f"two points of the grid would have the same folder: give each value once. {', '.join(names)}")
    asked = ["dragoman", command, *flags(options)]
    failures = await side_by_side(
        [[*asked, *point.flags, f"--out={point.folder}"] for point in points], runner, gpus=gpus, at_once=at_once
    )
    wanted = score or SCORES.get(command, SCORE_OF_TRAINING)
    rows = [point.row(failure, wanted) for point, failure in zip(points, failures, strict=True)]
    files.write_text(table := Path(out) / "table.md", _table(Path(out).name, rows))
    await publish(f"sweep-{command}", table)
    if failed := [name for name, failure in zip(names, failures, strict=True) if failure]:
        return Failed(message=f"{len(failed)} of {len(points)} points failed: {', '.join(failed)}")
    return Completed()


@dataclass(frozen=True)
class Point:
    """Of a grid: a value for each setting."""

    out: Path
    values: Mapping[str, JsonValue]

    @property
    def folder(self) -> Path:
        """`rl.price=0.1` as a name, and so for each setting."""
        return self.out / folder_name(",".join(f"{key}={value}" for key, value in self._shown.items()))

    @property
    def flags(self) -> list[str]:
        return [f"--set={key}={json.dumps(value)}" for key, value in self.values.items()]  # JSON is YAML

    def row(self, failure: Exception | None, score: str) -> dict[str, str]:
        """What the table has of it: the scores that its command has left, or why that has failed."""
        if failure:
            return {**self._shown, FAILED: _reason(failure)}
        metrics = json.loads((self.folder / "metrics.json").read_text(encoding="utf-8"))
        return {**self._shown, **dict(_scores(metrics, score))}

    @property
    def _shown(self) -> dict[str, str]:
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.values.items()}


def _reason(failure: Exception) -> str:
    """The last words of a command, or what has kept it from having any."""
    return failure.last[-1] if isinstance(failure, CommandFailed) and failure.last else str(failure)


def _scores(metrics: Mapping[str, Any], name: str, under: str = "") -> Iterator[tuple[str, str]]:
    """The figures of that name, wherever they stand: `dev_reward` and `first.dev_reward`, or one for each system."""
    for key, value in metrics.items():
        if isinstance(value, dict) and not {"mean", "low", "high"} <= value.keys():
            yield from _scores(value, name, f"{under}{key}.")
        elif key == name:
            yield f"{under}{key}", _as_read(value)


def _as_read(figure: Any) -> str:
    match figure:
        case dict():
            return interval(figure)
        case float():
            return f"{figure:.4g}"
        case None:
            return NOTHING
    return str(figure)


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """A row for each, and a column for whatever any of them has. Why points failed stands last."""
    head = sorted(dict.fromkeys(column for row in rows for column in row), key=FAILED.__eq__)
    return Table(title, head, [[row.get(column, NOTHING) for column in head] for row in rows]).markdown()

"""A command in shards: every N-th question on a machine of its own, then all of them merged.

What is drawn for a question depends on the seed, its id and the state, and not on its neighbours. So what is merged
equals the whole, whatever the number of shards. One exception: engines below float32 may round differently in another
batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EPISODES, EpisodeStore, read_episodes

T = TypeVar("T")


class Finished(BaseModel):
    """What a shard says of its last run: its folder may also hold some of earlier settings."""

    made_with: dict[str, Any] = Field(alias="made")
    """The settings it was made with, as far as its episodes do not say."""
    left: Any
    """What came of it: by the folder of a store, the keys of its episodes in the order of the questions."""


@dataclass(frozen=True)
class Shard:
    """The `number`-th (from 1) of `of` shards."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `2/3`.

        Raises:
            UserError: it is not that.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"shard {text}: give its number and how many there are, such as 1/4")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def all(cls, of: int) -> list[Shard]:
        return [cls(number, of) for number in range(1, of + 1)]

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def folder(self, out: Path) -> Path:
        """Where its results go. Another number of shards has other folders, and starts anew."""
        return out / "shards" / f"{self.number}-of-{self.of}"

    def part(self, items: Sequence[T], what: str = "questions") -> list[T]:
        """Every `of`-th, so that each shard has easy and hard questions of a curriculum.

        Raises:
            UserError: there are fewer of them than shards.
        """
        if len(items) < self.of:
            raise UserError(f"{self.of} shards of {len(items)} {what}: take fewer shards, or more {what}")
        return list(items[self.number - 1 :: self.of])

    def begin(self, out: Path) -> None:
        """Mark it as not finished."""
        self._record(out).unlink(missing_ok=True)

    def finish(self, out: Path, left: Any, made_with: Mapping[str, Any] = {}) -> None:
        """Mark it as finished; see `Finished`."""
        files.write_json(self._record(out), {"made": dict(made_with), "left": left})

    def finished(self, out: Path) -> Finished:
        """
        Raises:
            UserError: it has not been run to its end.
        """
        try:
            return Finished.model_validate_json(self._record(out).read_bytes())
        except (FileNotFoundError, ValidationError):
            raise UserError(
                f"{self.folder(out)}: not finished; run the same command with --shard {self} in the place of --merge"
            ) from None

    def check(self, out: Path, made_with: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """
        Raises:
            UserError: it was made with other settings than these.
        """
        if differing := [key for key in expected if expected[key] != made_with.get(key)]:
            raise UserError(
                f"{self.folder(out)}: its {' and '.join(differing)} differ from those of this command or of the other "
                f"shards; run all shards, and the merge, with the same settings, models, index and code"
            )

    def _record(self, out: Path) -> Path:
        return self.folder(out) / "shard.json"


def keys(episodes: Sequence[Episode]) -> list[str]:
    return [episode.key for episode in episodes]


def merge(
    out: Path,
    of: int,
    questions: Sequence[Question],
    configs: Mapping[str, Mapping[str, Any]],
    *,
    draws: int = 1,
    made_with: Mapping[str, Any] = {},
) -> dict[str, list[Episode]]:
    """Put the episodes of finished shards into `out`, which then holds those that the whole run would have left there.

    They are appended in the order of the questions; those that are there already stay as they are.

    Args:
        configs: by the folder of a store below `out`, what its episodes must have been made with; see `describe`.
        draws: how often each question was asked, with one seed after the other from that of the configuration.
        made_with: what all shards must have been made with besides; see `Finished`.

    Returns:
        The episodes of each store, draw by draw in the order of the questions.

    Raises:
        UserError: a shard is not finished, or belongs to another run. Then nothing is merged.
    """
    found = {at: _collected(out, of, questions, at, config, draws, made_with) for at, config in configs.items()}
    for at, episodes in found.items():
        keep(episodes, out / at)
    return found


def keep(episodes: Sequence[Episode], folder: Path) -> None:
    """Add those to a store that it has not, or only as such that are tried again."""
    with EpisodeStore(folder) as store:
        known, done = store.episodes, store.done
        for episode in episodes:
            if episode.key not in done and known.get(episode.key) != episode:
                store.add(episode)


def _collected(
    out: Path,
    of: int,
    questions: Sequence[Question],
    at: str,
    config: Mapping[str, Any],
    draws: int,
    made_with: Mapping[str, Any],
) -> list[Episode]:
    seed, first = config["seed"], dict[str, Any]()
    found: dict[tuple[int, str], Episode] = {}
    for shard in Shard.all(of):
        finished = shard.finished(out)
        stored = {e.key: e for e in read_episodes(shard.folder(out) / at / EPISODES)} if at in finished.left else {}
        episodes = [stored[key] for key in finished.left.get(at, ()) if key in stored]
        asked = [(seed + draw, question.to_json()) for draw in range(draws) for question in shard.part(questions)]
        if [(e.config["seed"], e.question) for e in episodes] != asked:
            raise UserError(
                f"{shard.folder(out) / at}: other questions, systems, seeds or draws than these; run shard {shard} again"
            )
        for episode in episodes:
            own = episode.config | finished.made_with | {"seed": seed}
            first = first or {**own, **config, **made_with}
            shard.check(out, own, first)
            found[episode.config["seed"], episode.question["id"]] = episode
    return [found[seed + draw, question.id] for draw in range(draws) for question in questions]

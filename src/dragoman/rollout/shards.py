"""A rollout in shards: every N-th question on a machine of its own, then all of them merged.

What is drawn for a question depends on the seed, its id and the state, and not on its neighbours. So the merged rollout
equals the whole one, whatever the number of shards. One exception: engines below float32 may round differently in
another batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.results import write_rollout
from dragoman.rollout.store import EpisodeStore, read_episodes


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

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def folder(self, out: Path) -> Path:
        """Where its rollout goes. Another number of shards has other folders, and starts anew."""
        return out / "shards" / f"{self.number}-of-{self.of}"

    def part(self, questions: Sequence[Question]) -> list[Question]:
        """Every `of`-th question, so that each shard has easy and hard ones of a curriculum.

        Raises:
            UserError: there are fewer questions than shards.
        """
        if len(questions) < self.of:
            raise UserError(f"{self.of} shards of {len(questions)} questions: take fewer shards, or more questions")
        return list(questions[self.number - 1 :: self.of])

    def begin(self, out: Path) -> None:
        """Mark it as not finished."""
        self._record(out).unlink(missing_ok=True)

    def finish(self, out: Path, episodes: Sequence[Episode]) -> None:
        """Mark it as finished, with the keys of its episodes: the folder may also hold some of earlier settings."""
        files.write_json(self._record(out), [episode.key for episode in episodes])

    def episodes(self, out: Path) -> list[Episode]:
        """Those of its last run, in the order in which the questions were asked.

        Raises:
            UserError: it has not been run to its end.
        """
        try:
            keys = json.loads(self._record(out).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{self.folder(out)}: not finished; run the same command with --shard {self} in the place of --merge"
            ) from None
        stored = {episode.key: episode for episode in read_episodes(self.folder(out) / "episodes.jsonl")}
        return [stored[key] for key in keys]

    def _record(self, out: Path) -> Path:
        return self.folder(out) / "shard.json"


def merge(
    out: Path, of: int, name: str, questions: Sequence[Question], *, draws: int, seed: int, reward: str, views: int
) -> dict[str, Any]:
    """Merge finished shards into `out`: it then holds what the whole rollout would have left there.

    Episodes are appended in the order of the questions; those that are there already stay as they are.

    Returns:
        What `out/metrics.json` holds.

    Raises:
        UserError: a shard is not finished, or belongs to another rollout.
    """
    shards = [Shard(number, of) for number in range(1, of + 1)]
    first: dict[str, Any] = {}
    found: dict[tuple[int, str], Episode] = {}
    for shard in shards:
        asked = [(seed + draw, question) for draw in range(draws) for question in shard.part(questions)]
        episodes = shard.episodes(out)
        if [(e.config["seed"], e.question) for e in episodes] != [(s, question.to_json()) for s, question in asked]:
            raise UserError(f"{shard.folder(out)}: other questions, seeds or draws than these; run shard {shard} again")
        for episode in episodes:
            config = episode.config | {"seed": None}
            first = first or config | {"system": name}
            if differing := [key for key in first if first[key] != config.get(key)]:
                raise UserError(
                    f"{shard.folder(out)}: its {' and '.join(differing)} differ from those of the others; run all "
                    f"shards with the same settings, models, index and code"
                )
            found[episode.config["seed"], episode.question["id"]] = episode
    ordered = [found[seed + draw, question.id] for draw in range(draws) for question in questions]
    with EpisodeStore(out) as store:
        for episode in ordered:
            if episode.key not in store.done:
                store.add(episode)
    return write_rollout(ordered, reward, out, views)

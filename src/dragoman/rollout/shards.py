"""A rollout in shards: every N-th question by itself, on whatever machine, then all of them as if they had been one.

What is drawn for a question is decided by the seed, the question's id and the state (`rollout.tree`), and not by its place or
its neighbours. So the number of shards decides who does the work, and nothing that comes of it. One thing is not ours: an
engine below float32 may round differently in another batch, from shard to shard as from run to run.
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
        """Where its rollout goes: as many shards as before go on where they were, another number starts anew."""
        return out / "shards" / f"{self.number}-of-{self.of}"

    def part(self, questions: Sequence[Question]) -> list[Question]:
        """Its questions, by their places: neighbours are apart, so that a curriculum is spread evenly.

        Raises:
            UserError: there are fewer questions than shards.
        """
        if len(questions) < self.of:
            raise UserError(f"{self.of} shards of {len(questions)} questions: take fewer shards, or more questions")
        return list(questions[self.number - 1 :: self.of])

    def begin(self, out: Path) -> None:
        self._record(out).unlink(missing_ok=True)

    def finish(self, out: Path, episodes: Sequence[Episode]) -> None:
        """Note which episodes are those of the run that has ended: the folder may hold some of earlier settings as well."""
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
    """Put `of` finished shards of a rollout together in `out`: what the rollout in one would have left there.

    Episodes are appended in the order of the questions; those that are there already stay as they are.

    Returns:
        What `out/metrics.json` holds.

    Raises:
        UserError: a shard is not finished, or is one of another rollout.
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

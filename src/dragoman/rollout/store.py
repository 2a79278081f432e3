"""Episodes on disk: append-only, safe against `kill -9`, and resumable at the level of single calls.

`episodes.jsonl` gets a line when a question is done. `calls.jsonl` gets one for each finished call of a question that is
not, so that a run that is killed and started again repeats no call. So it is with a question that met a fault, or a prompt
that was too long. The file is removed when all questions are done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.rollout.record import SCHEMA, Episode, validated

EPISODES = "episodes.jsonl"
OTHERS = 7
"""Of so many configs beside the one that is asked for, `trim` keeps the episodes."""


class EpisodeStore:
    """The episodes of one folder. Open it with `with`; a second process that opens it is refused.

    When an episode is appended again under the same key, the last one counts. Faulty episodes are kept as records, but
    `done` leaves them out, so that the next run tries them again. So it is with those that met a prompt that was too long:
    no key names how long one may be, and the next run may allow more. A run tries it once, not twice.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / EPISODES
        self._calls_path = self.folder / "calls.jsonl"
        self._calls: dict[str, dict[str, Any]] = defaultdict(dict)
        self._episodes: dict[str, Episode] = {}
        self._asked: set[str] = set()  # by this run: those of other settings are nobody's to go on with
        self._again: set[str] = set()  # to be asked again, and not asked by this run yet
        self._lock = ExitStack()

    def __enter__(self) -> EpisodeStore:
        with ExitStack() as lock:
            lock.enter_context(files.only_writer(self.folder))
            self._open()
            self._lock = lock.pop_all()
        return self

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(files.repaired(self.path), start=1):
            if row.get("schema_version") != SCHEMA:
                raise UserError(
                    f"{self.path}: written with schema {row.get('schema_version')}, this version reads {SCHEMA}; "
                    "move the folder away and run again"
                )
            episode = validated(Episode, row, f"{self.path}:{number}", "an episode")
            self._episodes[episode.key] = episode
        self._again = {key for key, episode in self._episodes.items() if episode.too_long}
        for row in files.repaired(self._calls_path):
            self._calls[row["episode"]][row["call"]] = row["value"]
        self._episodes_file, self._calls_file = files.Appended(self.path), files.Appended(self._calls_path)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in (self._episodes_file, self._calls_file):
            file.close()
        try:
            if kind is None:
                self._forget_calls()
        finally:
            self._lock.close()

    def _forget_calls(self) -> None:
        """Drop those of episodes that the next run does not go on with."""
        asked = {key: episode for key in self._asked if (episode := self._episodes.get(key))}
        unfinished = {key for key, e in asked.items() if (e.faulty or e.too_long) and not e.broken}
        left = [row for row in files.repaired(self._calls_path) if row["episode"] in unfinished] if unfinished else []
        if left:
            files.write(self._calls_path, left)
        else:
            self._calls_path.unlink(missing_ok=True)

    @property
    def done(self) -> dict[str, Episode]:
        """Episodes that need no further work in this run, by key."""
        return {key: e for key, e in self._episodes.items() if not e.faulty and key not in self._again}

    def ask_again(self, wanted: Callable[[Episode], bool]) -> None:
        """Take those episodes as not done."""
        self._again |= {key for key, episode in self._episodes.items() if wanted(episode)}

    @property
    def episodes(self) -> dict[str, Episode]:
        """All episodes, by key, faulty ones too."""
        return dict(self._episodes)

    def recorded(self, key: str) -> dict[str, Any]:
        """The finished calls of an unfinished episode, by call id."""
        self._asked.add(key)
        return self._calls.pop(key, {})

    def remember(self, key: str, call: str, value: Any) -> None:
        self._calls_file.add({"episode": key, "call": call, "value": value})

    def add(self, episode: Episode) -> None:
        """Keep an episode. One that came out as it is kept already, at other times, is not written again."""
        self._again.discard(episode.key)
        before = self._episodes.get(episode.key)
        if before and before.model_copy(update={"started": episode.started, "seconds": episode.seconds}) == episode:
            return
        self._episodes_file.add(episode.model_dump(mode="json"))
        self._episodes[episode.key] = episode

    def trim(self, config: Mapping[str, Any]) -> None:
        """Keep the episodes of one config, and those of the latest others: each night's policy has a config of its own."""
        configs: list[Mapping[str, Any]] = [config]
        for episode in reversed(self._episodes.values()):
            if episode.config not in configs:
                configs.append(episode.config)
        if len(configs) <= OTHERS + 1:
            return
        self._episodes = {key: e for key, e in self._episodes.items() if e.config in configs[: OTHERS + 1]}
        self._episodes_file.close()
        files.write(self.path, (episode.model_dump(mode="json") for episode in self._episodes.values()))
        self._episodes_file = files.Appended(self.path)


def read_episodes(path: Path | str) -> list[Episode]:
    """The episodes of a finished run, the last one of each key, in the order in which they were first written.

    Raises:
        UserError: no such file, or not an episode file of this version.
    """
    episodes: dict[str, Episode] = {}
    for number, row in files.read(path):
        if row.get("schema_version") != SCHEMA:
            raise UserError(f"{path}:{number}: not an episode of schema {SCHEMA}")
        episode = validated(Episode, row, f"{path}:{number}", "an episode")
        episodes[episode.key] = episode
    return list(episodes.values())

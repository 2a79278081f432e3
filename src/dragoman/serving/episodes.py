"""Episodes that the endpoint keeps: what users asked, and what they were answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EPISODES
from dragoman.serving.kept import KeptLines, in_the_background

_BEGINNING = re.compile(rb'\{"schema_version":\d+,"key":"([^"\\]+)","asked_by":(null|"(?:[^"\\]|\\.)*"),')
"""Of an episode's line: reading no more makes a start with gigabytes of them a matter of seconds."""


class KeptEpisode(NamedTuple):
    """Whose a kept episode is, and where in its file its line lies."""

    key: str
    by: str | None
    offset: int
    length: int


@contextmanager
def episode_writer(
    folder: Path, most_bytes: int, *, written: Callable[[KeptEpisode], None] = lambda kept: None
) -> Iterator[Callable[[Episode], None]]:
    """What appends an episode to `episodes.jsonl` in the folder, in a thread, and without fail for the caller.

    The file is for its owner alone. One that grows larger than `most_bytes` takes the place of `episodes.1.jsonl`.

    Args:
        written: told of each episode that has been written, in the same thread.

    Raises:
        UserError: nothing can be written there, or another process writes there.
    """
    path = folder / EPISODES
    with files.only_writer(folder):
        try:
            kept = KeptLines(path, most_bytes)
        except OSError as e:
            raise UserError(f"serve.episodes: {path}: cannot write ({e.strerror})") from None

        def write(episode: Episode) -> None:
            offset, length = kept.append(episode.model_dump(mode="json"))
            written(KeptEpisode(episode.key, episode.asked_by, offset, length))

        with closing(kept), in_the_background(str(path), write) as keep:
            yield keep


def kept_episodes(file: Path) -> Iterator[KeptEpisode]:
    """The episodes of a file, if it is there. Those that a version before feedback has kept are left out, and half a line."""
    if not file.is_file():
        return
    offset = 0
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and (whose := owner_of(line)):
                yield KeptEpisode(*whose, offset, len(line))
            offset += len(line)


def owner_of(line: bytes) -> tuple[str, str | None] | None:
    """The key of the episode that a line begins with, and who asked; None where it is no such line."""
    found = _BEGINNING.match(line)
    return (found[1].decode(), json.loads(found[2])) if found else None

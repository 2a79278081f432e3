"""Episodes that the endpoint keeps: what users asked, and what they were answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.rollout.record import Episode
from dragoman.rollout.store import EPISODES
from dragoman.serving.kept import KeptLines, in_the_background


@contextmanager
def episode_writer(folder: Path, most_bytes: int) -> Iterator[Callable[[Episode], None]]:
    """What appends an episode to `episodes.jsonl` in the folder, in a thread, and without fail for the caller.

    The file is for its owner alone. One that grows larger than `most_bytes` takes the place of `episodes.1.jsonl`.

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
            kept.append(episode.model_dump(mode="json"))

        with closing(kept), in_the_background(str(path), write) as keep:
            yield keep

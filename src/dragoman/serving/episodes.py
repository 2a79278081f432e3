"""Episodes that the endpoint keeps: what users asked, and what they were answered."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.rollout.record import Episode

log = logging.getLogger(__name__)

MOST_WAITING = 1000
"""Episodes that wait for a slow disk. Those that come then are not kept, which the log says."""


@contextmanager
def episode_writer(folder: Path, most_bytes: int) -> Iterator[Callable[[Episode], None]]:
    """What appends an episode to `episodes.jsonl` in the folder, in a thread, and without fail for the caller.

    The file is for its owner alone. One that grows larger than `most_bytes` takes the place of `episodes.1.jsonl`.

    Raises:
        UserError: nothing can be written there, or another process writes there.
    """
    path = folder / "episodes.jsonl"
    waiting: queue.Queue[Episode | None] = queue.Queue(MOST_WAITING)
    with files.only_writer(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = _open(path)
        except OSError as e:
            raise UserError(f"serve.episodes: {path}: cannot write ({e.strerror})") from None
        thread = threading.Thread(
            target=_write_all, args=(path, file, waiting, most_bytes), name="episodes", daemon=True
        )
        thread.start()
        lost = False

        def keep(episode: Episode) -> None:
            nonlocal lost
            try:
                waiting.put_nowait(episode)
                lost = False
            except queue.Full:
                if not lost:
                    log.error("%s: %d episodes wait to be written; further ones are not kept", path, MOST_WAITING)
                lost = True

        try:
            yield keep
        finally:
            waiting.put(None)
            thread.join()


def _open(path: Path) -> IO[bytes]:
    files.cut_torn_line(path)
    path.touch(mode=0o600)
    path.chmod(0o600)  # an earlier version left it readable for everybody
    return path.open("ab")


def _write_all(path: Path, file: IO[bytes], waiting: queue.Queue[Episode | None], most_bytes: int) -> None:
    full = False
    while (episode := waiting.get()) is not None:
        line = (files.dumps(episode.model_dump(mode="json")) + "\n").encode(errors="replace")
        try:
            if not file.closed and file.tell() and file.tell() + len(line) > most_bytes:
                file.close()
                path.replace(path.with_name("episodes.1.jsonl"))
            if file.closed:
                file = _open(path)
            file.write(line)
            file.flush()
        except OSError as e:  # an answer is worth more than its record
            if not full:
                log.error("%s: cannot write (%s); episodes are not kept until that is mended", path, e.strerror)
            full = True
            with suppress(OSError):
                file.close()  # what is half written is cut off when it is opened again
        else:
            full = False
    with suppress(OSError):
        file.close()

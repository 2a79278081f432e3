"""What the endpoint keeps: files for its owner alone, of whole lines, and not without end; written while nobody waits."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from dragoman.core import files
from dragoman.rollout.feedback import aside

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAITING = 1000
"""What waits for a slow disk or server. What comes then is lost, which the log says."""


class KeptLines:
    """Appends rows to a file. To be used by one thread at a time, and closed.

    Args:
        most_bytes: a file that would grow larger takes the place of `NAME.1.jsonl`, and a new one is begun.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path, self._most_bytes = path, most_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()

    def append(self, row: dict[str, Any]) -> tuple[int, int]:
        """Add a line. It is with the kernel when this returns, which survives the death of this process.

        Returns:
            Where it begins in the file, and its length. What begins at 0 has begun a new file.

        Raises:
            OSError: it could not be written. The next call tries the file anew.
        """
        line = (files.dumps(row) + "\n").encode(errors="replace")
        try:
            if not self._file.closed and not self._is_in_place():
                self._file.close()
            if not self._file.closed and self._size() > 0 and self._size() + len(line) > self._most_bytes:
                self._file.close()
                self.path.replace(aside(self.path))
            if self._file.closed:
                self._file = self._open()
            offset = self._size()
            self._file.write(line)
            self._file.flush()
        except OSError:
            self.close()  # what is half written is cut off when it is opened again
            raise
        return offset, len(line)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _is_in_place(self) -> bool:
        """Whether the open file has its name: somebody may have moved it away, or purged a copy and put that in its place."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _size(self) -> int:
        """Of the file as it is now, which may have been cut in place: what is appended begins there."""
        return os.fstat(self._file.fileno()).st_size

    def _open(self) -> IO[bytes]:
        files.cut_torn_line(self.path)
        self.path.touch(mode=0o600)
        self.path.chmod(0o600)  # also where it was there: a copy that was put back is often readable for everybody
        return self.path.open("ab")


@contextmanager
def in_the_background(
    name: str, work: Callable[[T], None], *, patience_s: float | None = None
) -> Iterator[Callable[[T], None]]:
    """What has `work` done in a thread, in order, without a wait and without fail for the caller.

    The first fault in a row is logged under `name`.

    Args:
        patience_s: how long the end waits for what is left to do, which is then lost; None waits for all of it.
    """
    waiting: queue.Queue[tuple[T] | None] = queue.Queue(MOST_WAITING)
    lost = False

    def give(item: T) -> None:
        nonlocal lost
        try:
            waiting.put_nowait((item,))
            lost = False
        except queue.Full:
            if not lost:
                log.error("%s: %d wait to be written; further ones are not kept", name, MOST_WAITING)
            lost = True

    def work_on() -> None:
        failing = False
        while (item := waiting.get()) is not None:
            try:
                work(*item)
                failing = False
            except Exception as e:  # an answer is worth more than its record
                if not failing:
                    log.error("%s: cannot write (%s); nothing is kept until that is mended", name, e)
                failing = True

    thread = threading.Thread(target=work_on, name=name, daemon=True)
    thread.start()
    try:
        yield give
    finally:
        with suppress(queue.Full):
            waiting.put(None, timeout=patience_s)
        thread.join(patience_s)

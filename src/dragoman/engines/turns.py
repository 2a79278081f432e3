"""The engines of a process compute one after the other."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType


class Turns:
    """A lock that serves in the order of asking.

    vLLM keeps the context of a forward pass in a global, so two engines of one process must not step at once. And on a
    CPU the threads of two engines would wait for each other at every operation, which takes several times as long as
    one after the other. With a plain lock the thread that has just stepped would win it again, and the other would starve.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = itertools.count()
        self._serving = 0

    def __enter__(self) -> None:
        with self._changed:
            mine = next(self._next)
            self._changed.wait_for(lambda: self._serving == mine)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._serving += 1
            self._changed.notify_all()


TURNS = Turns()

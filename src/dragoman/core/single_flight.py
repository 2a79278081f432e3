"""What several tasks ask for under one key at the same time is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Computations by key. Whoever asks for one that is under way waits for its result, or for its failure.

    A caller that is cancelled does not take the result from the others: the computation goes on.

    Args:
        keep: answer with the first result for ever. Otherwise a key is forgotten as soon as its computation ends.

    Attributes:
        shared: how many calls were answered by the computation of another one.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.shared = 0
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def run(self, key: K, compute: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of `compute`, or of an equal call that came before."""
        if key in self._tasks:
            self.shared += 1
        else:
            task = self._tasks[key] = asyncio.create_task(compute())
            if not self.keep:
                task.add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(self._tasks[key])

    async def cancel(self) -> None:
        """Stop what is under way, and wait until it has stopped."""
        pending = [task for task in self._tasks.values() if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

"""How many questions are under way at once, how many may wait, and when the others should come again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.serving.errors import ApiError

LONGEST_WAIT_S = 60
_MEMORY = 0.9  # weight of the past in the moving average


class Gate:
    """Lets `concurrency` callers in, keeps `queue` more waiting in order, and sends the others away.

    Args:
        of: what the callers want to do, for those who are sent away.
    """

    def __init__(self, concurrency: int, queue: int, of: str = "questions") -> None:
        self.concurrency, self.queue, self.of = concurrency, queue, of
        self.running = 0
        self.waiting = 0
        self._slots = asyncio.Semaphore(concurrency)
        self._stay_s = 1.0  # how long callers have stayed, as a moving average

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """
        Raises:
            ApiError: 429, with the seconds after which there should be room.
        """
        if self._slots.locked() and self.waiting >= self.queue:
            raise ApiError(
                429,
                "queue_full",
                f"{self.running} {self.of} are under way and {self.waiting} wait: ask again later",
                retry_after=self.retry_after_s,
            )
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        entered = time.monotonic()
        try:
            yield
        finally:
            self._stay_s = _MEMORY * self._stay_s + (1 - _MEMORY) * (time.monotonic() - entered)
            self.running -= 1
            self._slots.release()

    @property
    def retry_after_s(self) -> int:
        """When all who wait now should have been let in."""
        expected = self._stay_s * (self.waiting + 1) / self.concurrency
        return min(max(math.ceil(expected), 1), LONGEST_WAIT_S)

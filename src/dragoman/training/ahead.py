"""What iterations to come will learn from, drawn while the learner is at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType

from dragoman.training.algorithm import Collected


class Ahead:
    """Draws for iterations in the background, one after the other. At its end it gives up what it has not drawn.

    Args:
        draw: for the iteration of that number.
    """

    def __init__(self, draw: Callable[[int], Awaitable[Collected]]) -> None:
        self._draw, self._turn = draw, asyncio.Lock()  # in the order of asking
        self._tasks: dict[int, asyncio.Task[Collected]] = {}

    async def __aenter__(self) -> Ahead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def begin(self, numbers: Iterable[int]) -> None:
        """Draw for these iterations, where that has not begun."""
        for number in numbers:
            if number not in self._tasks:
                self._tasks[number] = asyncio.create_task(self._one(number))

    async def take(self, number: int) -> Collected:
        """What was drawn for an iteration, as soon as it is there. What went wrong is raised here."""
        self.begin([number])
        return await self._tasks.pop(number)

    async def _one(self, number: int) -> Collected:
        async with self._turn:
            return await self._draw(number)

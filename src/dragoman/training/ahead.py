"""What iterations to come will learn from, drawn while the learner is at work."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from dragoman.training.algorithm import Collected

Made = TypeVar("Made")

ASK_AGAIN = 0.2
"""Seconds after which a thread that goes on is told once more that it is given up."""


class GivenUp(BaseException):
    """Raised in a thread whose work nobody waits for any more."""


async def meanwhile(work: Callable[..., Made], *arguments: Any) -> Made:
    """Do work in a thread, while others go on here. Who is cancelled gives it up: it ends at its next line of Python.

    `asyncio.to_thread` would go on to its end, and the command with it: Ctrl-C would take as long as an iteration learns.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Made] = loop.create_future()

    def settle(say: Callable[[Any], None], what: Any) -> None:
        if not ended.done():
            say(what)

    def run() -> None:
        with suppress(GivenUp):
            try:
                made = work(*arguments)
            except GivenUp:
                raise
            except BaseException as e:
                loop.call_soon_threadsafe(settle, ended.set_exception, e)
            else:
                loop.call_soon_threadsafe(settle, ended.set_result, made)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return await ended
    except asyncio.CancelledError:
        while thread.is_alive():
            name = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(name, ctypes.py_object(GivenUp))
            await asyncio.sleep(ASK_AGAIN)
        raise


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

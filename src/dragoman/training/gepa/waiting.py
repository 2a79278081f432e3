"""Lets a library that knows no coroutines wait for ours, from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Halted(BaseException):
    """A coroutine failed, or nobody waits for the result any more. The library must stop.

    It is no `Exception`, since a library may catch all of those and go on.
    """


@contextmanager
def halting() -> Iterator[None]:
    """Whatever fails within it stops the library, and comes out of `Waiting.run`."""
    try:
        yield
    except Exception as e:
        raise Halted from e


class Waiting:
    """Runs a function in a thread, where it may wait for coroutines of the loop that this was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._pending: Future[Any] | None = None
        self._over = False

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns. Where this is cancelled, so is the coroutine that the function waits for.

        Raises:
            Exception: what a coroutine has raised.
        """
        try:
            return await asyncio.to_thread(function)
        except Halted as e:
            raise e.__cause__ or e from None
        finally:
            with self._lock:
                self._over = True
                if self._pending is not None:
                    self._pending.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine; to be called in the thread.

        Raises:
            Halted: it failed, with its exception as the cause, or nobody waits any more.
        """
        with self._lock:
            if self._over:
                coroutine.close()
                raise Halted
            self._pending = pending = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        with halting():
            return pending.result()

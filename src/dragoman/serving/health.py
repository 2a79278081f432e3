"""What answers rest on, and whether it works: seen from the calls that are made anyway, and by a probe where they fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from dragoman.core.errors import Fault, PromptTooLong, Refused
from dragoman.engines.base import Engine, Front, Request, Result
from dragoman.retrieval.base import Hit, Retriever

log = logging.getLogger(__name__)

PROBE_S = 5.0
"""How long a dependency may take to show that it works."""
WAIT_S = 1.0
"""How long a caller waits for a probe that is under way."""
SLOW_S = 1.0
"""A call that was given up after so long makes its dependency suspect. It may hang, or the client had no time: the probe will tell."""


class Dependency:
    """A model or an index that every answer needs. It works from its first success to its next failure.

    Args:
        name: for the log.
        probe: asks it for as little as can be.
    """

    def __init__(self, name: str, probe: Callable[[], Awaitable[object]]) -> None:
        self.name, self._ask = name, probe
        self.failures: Counter[str] = Counter()
        """Since it last worked, by cause."""
        self._proven = False
        self._probe: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        return self._proven and not self.failures

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of it."""
        started = time.monotonic()
        try:
            yield
        except (PromptTooLong, Refused):  # what it was asked is at fault, and it may be well
            raise
        except Fault as e:
            self._failed(type(e).__name__)
            raise
        except asyncio.CancelledError:
            if time.monotonic() - started >= SLOW_S:
                self.suspect()
            raise
        self._worked()

    async def check(self) -> bool:
        """Whether it works. Where it did not when it was last used, it is asked once more, by one probe for all callers."""
        if not self.works:
            await asyncio.wait({self.suspect()}, timeout=WAIT_S)
        return self.works

    def suspect(self) -> asyncio.Task[None]:
        """Begin a probe, unless one is under way. It stays what it was until that has ended."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._try())
        return self._probe

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(PROBE_S):
                await self._ask()
        except TimeoutError:
            self._failed(f"no answer in {PROBE_S:g} s")
        except Exception as e:  # whatever it is, it is no answer
            self._failed(type(e).__name__)
        else:
            self._worked()

    def _failed(self, cause: str) -> None:
        if not self.failures:
            log.warning("the %s fails: %s", self.name, cause)
        self.failures[cause] += 1

    def _worked(self) -> None:
        if self.failures:
            log.info("the %s works again, after %s", self.name, dict(self.failures))
            self.failures.clear()
        self._proven = True


class WatchedEngine(Front):
    """The LLM's engine in the hands of one request. Remembers whether it failed: a trajectory does not say which engine did."""

    def __init__(self, inner: Engine, dependency: Dependency) -> None:
        super().__init__(inner)
        self._dependency, self.failed = dependency, False

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        try:
            with self._dependency.call():
                return await self.inner.generate(requests)
        except (PromptTooLong, Refused):
            raise
        except Fault:
            self.failed = True
            raise


class WatchedRetriever:
    """A retriever whose searches show whether it works."""

    def __init__(self, inner: Retriever, dependency: Dependency) -> None:
        self.inner, self._dependency = inner, dependency

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        with self._dependency.call():
            return await self.inner.search(queries, k, page)

    async def close(self) -> None:
        await self.inner.close()

"""Identical requests that are pending at the same time are computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.engines.base import Engine, Request, Result


class CoalescingEngine:
    """An engine in front of another one. Requests carry their seed, so equal ones have equal results."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.fingerprint = inner.fingerprint
        self.saved = 0
        self._pending: dict[Request, asyncio.Future[Result]] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: Request) -> Result:
        if request in self._pending:
            self.saved += 1
        else:
            task = asyncio.ensure_future(self._compute(request))
            self._pending[request] = task
            task.add_done_callback(lambda _: self._pending.pop(request, None))
        # shielded: one caller that is cancelled must not take the result from the others
        return await asyncio.shield(self._pending[request])

    async def _compute(self, request: Request) -> Result:
        (result,) = await self.inner.generate([request])
        return result

    async def forget(self) -> None:
        await self.inner.forget()

    async def close(self) -> None:
        await self.inner.close()

"""Identical requests that are pending at the same time are computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.core.single_flight import SingleFlight
from dragoman.engines.base import Engine, Front, Request, Result


class CoalescingEngine(Front):
    """An engine in front of another one. Requests carry their seed, so equal ones have equal results."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._flight = SingleFlight[Request, Result]()

    async def generate(self, requests: Sequence[Request]) -> list[Result]:
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: Request) -> Result:
        async def compute() -> Result:
            (result,) = await self.inner.generate([request])
            return result

        return await self._flight.run(request, compute)

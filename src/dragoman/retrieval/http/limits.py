"""What every request to the retrieval server passes: its key, and limits on body, time and number."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.core.keys import Keys
from dragoman.core.listening import bounded

MOST_BODY_BYTES = 4 << 20
BODY_S = 10.0
"""Seconds for a body to arrive."""
SEARCH_S = 60.0
"""Seconds for a whole request. Its search may go on, but nobody waits for it."""
MOST_AT_ONCE = 256
"""Requests under way. The next one is told to come again, which clients of ours do by themselves."""
MOST_PER_KEY = MOST_AT_ONCE // 2
"""Of them, those that one key may have, which leaves the rest to others."""
_OPEN = ("/healthz",)
"""Needs no key and no place."""


class Limits:
    """Refuses a request before it costs anything: without a key, too large, too slow, or one too many, of all or of its key."""

    def __init__(self, app: ASGIApp, *, keys: Keys | None) -> None:
        self.app, self.keys = app, keys
        self._under_way: Counter[str | None] = Counter()  # requests, by the name of their key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN:
            await self.app(scope, receive, send)
            return
        owner = None if self.keys is None else self.keys.owner(Headers(scope=scope).get("authorization", ""))
        refusal = self._refusal(owner)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        body = bounded(
            receive,
            most_bytes=MOST_BODY_BYTES,
            seconds=BODY_S,
            too_large=_too_large,
            too_slow=_too_slow,
        )
        self._under_way[owner] += 1
        try:
            async with asyncio.timeout(SEARCH_S):
                await self.app(scope, body, noted)
        except TimeoutError:
            if not begun:
                await _refused(503, f"no answer in {SEARCH_S:g} s")(scope, receive, send)
        finally:
            self._under_way[owner] -= 1

    def _refusal(self, owner: str | None) -> JSONResponse | None:
        if self.keys is not None and owner is None:
            return _refused(401, "give a valid key: `Authorization: Bearer KEY`", {"WWW-Authenticate": "Bearer"})
        if (everyone := self._under_way.total()) >= MOST_AT_ONCE:
            return _refused(503, f"{everyone} requests are under way", {"Retry-After": "1"})
        if owner is not None and (own := self._under_way[owner]) >= MOST_PER_KEY:
            return _refused(429, f"{own} requests of this key are under way", {"Retry-After": "1"})
        return None


_CLOSE = {"Connection": "close"}  # what is left of the body is not read


def _too_large() -> HTTPException:
    return HTTPException(413, f"a request may have at most {MOST_BODY_BYTES} bytes", _CLOSE)


def _too_slow() -> HTTPException:
    return HTTPException(408, f"the request was not there after {BODY_S:g} s", _CLOSE)


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": why}, status, headers)

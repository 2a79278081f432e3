"""Calls of a retrieval server: one connection pool for each event loop, repeats, and errors that say what came."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx
from pydantic import TypeAdapter, ValidationError

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.http import PASSING_STATUS, WholeAnswers, hidden, key_in, retrying, url_fault

Answer = TypeVar("Answer")
Result = TypeVar("Result")

LONGEST_WAIT = 30.0  # seconds, whatever a server's Retry-After asks for
CONNECT_TIMEOUT = 10.0
CONNECTIONS = 64


def run_apart(work: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns, run to its end in a thread of its own: this one may have an event loop already."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How a server is asked."""

    timeout: float = 60.0
    """Seconds to wait for the whole answer once connected."""
    connect_timeout: float = CONNECT_TIMEOUT
    retries: int = 4
    """How often to ask again after a transport error, 408, 429 or a 5xx."""
    backoff: float = 0.5
    """Seconds before the first retry, doubled before each later one; see `retrying`."""
    at_once: int = CONNECTIONS
    """Requests under way; the others wait."""
    pause: float = 0.0
    """Seconds between the beginnings of two requests, of which a retry is one."""


class _Paced(WholeAnswers):
    """Begins a try when the pause since the one before is over, whichever request each belongs to."""

    def __init__(self, asked: Patience) -> None:
        super().__init__(asked.connect_timeout + asked.timeout, asked.at_once)
        self._pause = asked.pause
        self._turn = asyncio.Lock()
        self._began = -math.inf

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._pause:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._began + self._pause - time.monotonic()))
                self._began = time.monotonic()
        return await super().handle_async_request(request)


@dataclass
class _Line:
    """What belongs to one event loop: a connection belongs to the loop that opened it."""

    client: httpx.AsyncClient
    places: asyncio.Semaphore


class Calls:
    """Asks the server at `url`.

    Args:
        who: the server, for errors: "dragoman's retrieval server".
        key_env: the environment variable with its key, which is sent as a bearer token and never shown.
        hints: what to do about a status, by status.

    Raises:
        UserError: `url` is not an http(s) address or holds a secret, or no header can hold the key.
    """

    def __init__(
        self,
        url: str,
        who: str,
        patience: Patience = Patience(),
        key_env: str = "",
        hints: Mapping[int, str] | None = None,
    ) -> None:
        if fault := url_fault(url):
            raise UserError(f"not the address of a retriever: {fault}")
        self.url, self._who, self._patience = url.rstrip("/"), who, patience
        self._key = key_in(key_env) if key_env else ""
        self._hints = ({401: f"is the key in {key_env} right?"} if key_env else {}) | dict(hints or {})
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    async def get(self, path: str, expected: type[Answer], query: Mapping[str, str | int] | None = None) -> Answer:
        """What GET answers, as `expected`.

        Raises:
            RetrieverFault: no answer, a refusal, or an answer of another form.
        """
        return await self._call("GET", path, expected, params=query)

    async def post(
        self, path: str, expected: type[Answer], body: Mapping[str, Any], *, unknown: Answer | None = None
    ) -> Answer:
        """What POST answers, see `get`; `unknown`, if it is given, where the server does not know the path."""
        return await self._call("POST", path, expected, unknown, json=body)

    async def close(self) -> None:
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.client.aclose()

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            asked = self._patience
            client = httpx.AsyncClient(
                timeout=httpx.Timeout(asked.timeout, connect=asked.connect_timeout),
                transport=retrying(
                    _Paced(asked),
                    retries=asked.retries,
                    first_wait=asked.backoff,
                    longest_wait=LONGEST_WAIT,
                ),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            )
            self._lines[loop] = _Line(client, asyncio.Semaphore(asked.at_once))
        return self._lines[loop]

    async def _call(
        self, method: str, path: str, expected: type[Answer], unknown: Answer | None = None, **content: Any
    ) -> Answer:
        url, line = self.url + path, self._line()
        try:
            async with line.places:
                response = await line.client.request(method, url, **content)
        except httpx.InvalidURL as e:
            raise UserError(f"{self.url}: not the address of a retriever ({e})") from None
        except (httpx.TransportError, httpx.DecodingError) as e:
            problem = hidden(f"{type(e).__name__} {e}".strip(), self._key)
        else:
            if response.status_code == 404 and unknown is not None:
                return unknown
            if response.status_code not in PASSING_STATUS:
                return self._parsed(url, response, expected)
            problem = f"status {response.status_code}, {self._excerpt(response)}"
        raise RetrieverFault(f"{url}: no answer in {self._patience.retries + 1} attempts, the last: {problem}")

    def _parsed(self, url: str, response: httpx.Response, expected: type[Answer]) -> Answer:
        if not response.is_success:
            hint = self._hints.get(response.status_code, "")
            raise RetrieverFault(
                f"{url}: refused with status {response.status_code}: {self._excerpt(response)}"
                + (hint and f" ({hint})")
            )
        try:
            return TypeAdapter(expected).validate_json(response.content)
        except ValidationError as e:
            where = ".".join(map(str, e.errors()[0]["loc"]))
            reason = f"{where}: {e.errors()[0]['msg']}" if where else e.errors()[0]["msg"]
            kind = response.headers.get("content-type", "no content type")
            raise RetrieverFault(
                f"{url}: not an answer of {self._who} ({hidden(reason, self._key)}); {kind} came: {self._excerpt(response)}"
            ) from None

    def _excerpt(self, response: httpx.Response) -> str:
        text = hidden(" ".join(response.text.split()), self._key)  # some servers repeat what they refuse
        return repr(text if len(text) <= 120 else text[:120] + "...")

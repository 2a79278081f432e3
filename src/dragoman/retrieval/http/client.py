"""A retriever that is somewhere else: the client of `dragoman.retrieval.http.server`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx
from pydantic import BaseModel, ValidationError

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.http import PASSING_STATUS, retrying, url_fault
from dragoman.retrieval.base import Hit, span, well_formed
from dragoman.retrieval.http import wire

Answer = TypeVar("Answer", bound=BaseModel)

KEY_ENV = "DRAGOMAN_RETRIEVER_KEY"
"""The environment variable with the key of a server that wants one."""
LONGEST_WAIT = 30.0  # seconds, whatever a server's Retry-After asks for


class HttpRetriever:
    """The retriever served at `url`, asked for its fingerprint at once (so not from the loop that serves it).

    Args:
        url: the root of the server, "http://localhost:8000".
        timeout: seconds to wait for an answer once connected.
        connect_timeout: seconds to wait for the connection.
        retries: how often to ask again after a transport error, 408, 429 or a 5xx.
        backoff: seconds before the first retry, doubled before each later one; see `retrying`.

    Raises:
        UserError: `url` is not an http(s) address, or holds a secret.
        RetrieverFault: no retrieval server of dragoman answers there.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        retries: int = 4,
        backoff: float = 0.5,
    ) -> None:
        if fault := url_fault(url):
            raise UserError(f"not the address of a retriever: {fault}")
        self.url = url.rstrip("/")
        self._timeout = httpx.Timeout(timeout, connect=connect_timeout)
        self._retries = retries
        key = os.environ.get(KEY_ENV, "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._backoff = backoff
        # A connection belongs to the event loop that opened it.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        with ThreadPoolExecutor(max_workers=1) as thread:
            health = thread.submit(asyncio.run, self._health()).result()
        self.fingerprint = health.fingerprint
        self.passage_count = health.passages

    def __repr__(self) -> str:
        return f"retriever at {self.url}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`. More than 1,000 queries or 100 passages take several requests.

        Raises:
            RetrieverFault: also when the server now serves another index than at first.
        """
        first, last = span(k, page)
        clean = [well_formed(query) for query in queries]
        asked = list(dict.fromkeys(query for query in clean if query.strip()))  # a blank query finds nothing
        found: dict[str, list[Hit]] = {}
        for start in range(0, len(asked), wire.MOST_QUERIES):
            part = asked[start : start + wire.MOST_QUERIES]
            found.update(zip(part, await self._search(part, first, last), strict=True))
        return [list(found.get(query, ())) for query in clean]

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Lookup.missing`. A server without that route cannot say, and at most 1,000 ids are looked up at once."""
        asked = {"ids": list(map(well_formed, ids))}
        cannot_say = wire.MissingResponse(missing=[])
        return (await self._call("POST", "/v1/missing", wire.MissingResponse, asked, unknown=cannot_say)).missing

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def _search(self, queries: list[str], first: int, last: int) -> list[list[Hit]]:
        """The hits of ranks `first` to `last`, in as many pages as the server's limit makes of them."""
        size = min(last - first, wire.MOST_PASSAGES)
        page = first // size
        begin = page * size
        found: list[list[Hit]] = [[] for _ in queries]
        while page * size < last:
            request = {"queries": queries, "k": size, "page": page}
            answer = await self._call("POST", "/v1/search", wire.SearchResponse, request)
            if answer.fingerprint != self.fingerprint:
                raise RetrieverFault(
                    f"{self.url}: now serves the index {answer.fingerprint}, not {self.fingerprint}: start the run again"
                )
            if len(answer.results) != len(queries):
                raise RetrieverFault(f"{self.url}: gave {len(answer.results)} results for {len(queries)} queries")
            for hits, more in zip(found, answer.results, strict=True):
                hits.extend(hit.hit() for hit in more)
            if all(len(more) < size for more in answer.results):
                break
            page += 1
        return [hits[first - begin : last - begin] for hits in found]

    async def _health(self) -> wire.Health:
        try:
            return await self._call("GET", "/healthz", wire.Health)
        finally:
            await self.close()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=64))
            waits = {"first_wait": self._backoff, "longest_wait": LONGEST_WAIT}
            self._clients[loop] = httpx.AsyncClient(
                timeout=self._timeout,
                transport=retrying(transport, retries=self._retries, **waits),
                headers=self._headers,
            )
        return self._clients[loop]

    async def _call(
        self,
        method: str,
        path: str,
        expected: type[Answer],
        body: dict[str, Any] | None = None,
        *,
        unknown: Answer | None = None,
    ) -> Answer:
        """What the server answers; `unknown`, if it is given, where the server does not know the path."""
        url = self.url + path
        try:
            response = await self._client().request(method, url, json=body)
        except httpx.InvalidURL as e:
            raise UserError(f"{self.url}: not the address of a retriever ({e})") from None
        except httpx.TransportError as e:
            problem = f"{type(e).__name__} {e}".strip()
        else:
            if response.status_code == 404 and unknown is not None:
                return unknown
            if response.status_code not in PASSING_STATUS:
                return _parsed(response, expected)
            problem = f"status {response.status_code}, {_excerpt(response)}"
        raise RetrieverFault(f"{url}: no answer in {self._retries + 1} attempts, the last: {problem}")


def _parsed(response: httpx.Response, expected: type[Answer]) -> Answer:
    url = response.request.url
    if not response.is_success:
        hint = f" (is the key in {KEY_ENV} right?)" if response.status_code == 401 else ""
        raise RetrieverFault(f"{url}: refused with status {response.status_code}: {_excerpt(response)}{hint}")
    try:
        return expected.model_validate_json(response.content)
    except ValidationError as e:
        where = ".".join(map(str, e.errors()[0]["loc"]))
        reason = f"{where}: {e.errors()[0]['msg']}" if where else e.errors()[0]["msg"]
        kind = response.headers.get("content-type", "no content type")
        raise RetrieverFault(
            f"{url}: not an answer of dragoman's retrieval server ({reason}); {kind} came: {_excerpt(response)}"
        ) from None


def _excerpt(response: httpx.Response) -> str:
    text = " ".join(response.text.split())
    return repr(text if len(text) <= 120 else text[:120] + "...")

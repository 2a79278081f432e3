"""A retriever that is somewhere else: the client of `dragoman.retrieval.http.server`."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.errors import RetrieverFault
from dragoman.retrieval.base import Hit, span, well_formed
from dragoman.retrieval.http import wire
from dragoman.retrieval.http.calls import CONNECT_TIMEOUT, CONNECTIONS, Calls, Patience, run_apart

KEY_ENV = "DRAGOMAN_RETRIEVER_KEY"
"""The environment variable with the key of a server that wants one."""


class HttpRetriever:
    """The retriever served at `url`, asked for its fingerprint at once (so not from the loop that serves it).

    Args:
        url: the root of the server, "http://localhost:8000".
        timeout, connect_timeout, retries, backoff, at_once, pause: see `Patience`.
        key_env: the environment variable with its key.

    Raises:
        UserError: `url` is not an http(s) address, or holds a secret.
        RetrieverFault: no retrieval server of dragoman answers there.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        connect_timeout: float = CONNECT_TIMEOUT,
        retries: int = 4,
        backoff: float = 0.5,
        at_once: int = CONNECTIONS,
        pause: float = 0.0,
        key_env: str = KEY_ENV,
    ) -> None:
        patience = Patience(
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            backoff=backoff,
            at_once=at_once,
            pause=pause,
        )
        self._calls = Calls(url, "dragoman's retrieval server", patience, key_env)
        self.url = self._calls.url
        health = run_apart(self._health())
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
        return (await self._calls.post("/v1/missing", wire.MissingResponse, asked, unknown=cannot_say)).missing

    async def close(self) -> None:
        await self._calls.close()

    async def _search(self, queries: list[str], first: int, last: int) -> list[list[Hit]]:
        """The hits of ranks `first` to `last`, in as many pages as the server's limit makes of them."""
        size = min(last - first, wire.MOST_PASSAGES)
        page = first // size
        begin = page * size
        found: list[list[Hit]] = [[] for _ in queries]
        while page * size < last:
            request = {"queries": queries, "k": size, "page": page}
            answer = await self._calls.post("/v1/search", wire.SearchResponse, request)
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
            return await self._calls.get("/healthz", wire.Health)
        finally:
            await self.close()

"""Servers that are not dragoman's: the retrieval servers of Search-R1 and of C-3PO, and search engines of the web.

The address says which: `search-r1+http://localhost:8000`. None of them tells which index it searches, so the fingerprint names
the address, and `index.server.revision`: where that is not set, the index changes, and it stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, FiniteFloat

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.http import key_in
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever, span, well_formed
from dragoman.retrieval.http.calls import CONNECTIONS, Calls, Patience
from dragoman.retrieval.http.client import KEY_ENV, HttpRetriever
from dragoman.retrieval.http.settings import ServerParams
from dragoman.retrieval.manifest import digest

AT_ONCE = 4  # requests under way: many of these servers are somebody else's
RANKS = 100  # how deep a server is searched: it has to find a later page together with all before
TAVILY_RESULTS = 20  # the most that it gives
SEARXNG_PAGES = 10
WEB_QUERY = 400  # characters that Tavily takes; engines behind SearXNG read no more


@dataclass(frozen=True)
class Dialect:
    """How a kind of server is asked."""

    who: str
    find: Callable[[Calls, Sequence[str], int], Awaitable[list[list[Hit]]]]
    """The first passages of each query, at least so many where there are."""
    path: str
    """Of the route, which an address may end in."""
    together: int = 64
    """Queries in one request."""
    ranks: int = RANKS
    key_env: str = ""
    """The variable with the key that it needs."""
    hints: dict[int, str] = field(default_factory=dict)


class ForeignRetriever:
    """The server at `url` that speaks `dialect`, a key of `DIALECTS`. Pages end at its deepest rank.

    A passage's id is the server's own, that of a web page its address. Passages without text are left out, and a score is
    never above the one before.

    Raises:
        UserError: `url` is not an http(s) address or holds a secret, or the key that the server needs is not set.
    """

    passage_count: int | None = None

    def __init__(self, dialect: str, url: str, server: ServerParams = ServerParams(), *, backoff: float = 0.5) -> None:
        self._dialect = spoken = DIALECTS[dialect]
        key_env = server.key_env or spoken.key_env
        if spoken.key_env and not key_in(key_env):
            raise UserError(f"{spoken.who} needs a key: put it into the environment variable {key_env}")
        patience = Patience(
            timeout=server.timeout,
            retries=server.retries,
            backoff=backoff,
            at_once=server.at_once or AT_ONCE,
            pause=server.pause,
        )
        url = url.rstrip("/").removesuffix(spoken.path)
        self._calls = Calls(url, spoken.who, patience, key_env, spoken.hints)
        self.url = self._calls.url
        self.changes_unseen = not server.revision
        named = {"url": self.url} | ({"revision": server.revision} if server.revision else {})
        self.fingerprint = f"{dialect}-{digest(named)}"

    def __repr__(self) -> str:
        return f"{self._dialect.who} at {self.url}"

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        """See `Retriever.search`."""
        first, last = span(k, page)
        depth = min(last, self._dialect.ranks)
        clean = [well_formed(query) for query in queries]
        asked = list(dict.fromkeys(query for query in clean if query.strip()))  # a blank query finds nothing
        if first >= depth or not asked:
            return [[] for _ in clean]
        size = self._dialect.together
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        answers = await asyncio.gather(*(self._find(part, depth) for part in parts))
        found = dict(zip(asked, (hits for answer in answers for hits in answer), strict=True))
        return [found.get(query, [])[first:depth] for query in clean]

    async def close(self) -> None:
        await self._calls.close()

    async def _find(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        found = await self._dialect.find(self._calls, queries, depth)
        if len(found) != len(queries):
            raise RetrieverFault(f"{self.url}: gave {len(found)} results for {len(queries)} queries")
        return [_tidy(hits) for hits in found]


def open_server(address: str, server: ServerParams) -> Retriever:
    """The retriever at `http(s)://...`, which is dragoman's, or at `DIALECT+http(s)://...`.

    Raises:
        UserError: no such dialect, not an address, no key where one is needed, or no retrieval server of dragoman answers.
    """
    dialect, _, _ = address.partition("://")[0].rpartition("+")
    if not dialect:
        try:
            return HttpRetriever(
                address,
                timeout=server.timeout,
                retries=server.retries,
                at_once=server.at_once or CONNECTIONS,
                pause=server.pause,
                key_env=server.key_env or KEY_ENV,
            )
        except RetrieverFault as e:
            raise UserError(f"no retriever to use: {e}") from e
    if dialect not in DIALECTS:
        raise UserError(
            f"{dialect!r} is no kind of retrieval server: write one of {', '.join(DIALECTS)} before +http://"
        )
    return ForeignRetriever(dialect, address.removeprefix(f"{dialect}+"), server)


class _Document(BaseModel):
    """Of Search-R1's server: `contents`, the title in quotes on the first line, or title and text. Of C-3PO's: the latter."""

    id: str | int = ""
    title: str = ""
    text: str = ""
    contents: str = ""

    def passage(self) -> Passage:
        title, text = self.title, self.text
        if not text:
            line, _, text = self.contents.partition("\n")
            title = title or line.strip().strip('"')
            if not text.strip():
                title, text = self.title, self.contents
        return Passage(str(self.id) or digest([title, text]), title, text)


class _Scored(BaseModel):
    document: _Document
    score: FiniteFloat


class _SearchR1Answer(BaseModel):
    result: list[list[_Scored]]


class _C3POHit(_Document):
    score: FiniteFloat


class _WebPage(BaseModel):
    url: str
    title: str | None = None
    content: str | None = None
    score: FiniteFloat | None = None

    def hit(self) -> Hit:
        return Hit(Passage(self.url, self.title or "", self.content or ""), self.score or 0.0)


class _TavilyAnswer(BaseModel):
    results: list[_WebPage]


class _SearXNGAnswer(BaseModel):
    results: list[_WebPage]
    unresponsive_engines: list[Any] = []


async def _search_r1(calls: Calls, queries: Sequence[str], depth: int) -> list[list[Hit]]:
    body = {"queries": list(queries), "topk": depth, "return_scores": True}  # without scores the original server fails
    answer = await calls.post("/retrieve", _SearchR1Answer, body)
    return [[Hit(hit.document.passage(), hit.score) for hit in hits] for hits in answer.result]


async def _c3po(calls: Calls, queries: Sequence[str], depth: int) -> list[list[Hit]]:
    answer = await calls.post("/search", list[list[_C3POHit]], {"queries": list(queries), "n_docs": depth})
    return [[Hit(hit.passage(), hit.score) for hit in hits] for hits in answer]


async def _searxng(calls: Calls, queries: Sequence[str], depth: int) -> list[list[Hit]]:
    """As many of its pages as it takes; an instance decides how long they are."""
    found: dict[str, Hit] = {}
    for number in range(1, SEARXNG_PAGES + 1):
        query: dict[str, str | int] = {"q": queries[0][:WEB_QUERY], "format": "json", "pageno": number}
        answer = await calls.get("/search", _SearXNGAnswer, query)
        if number == 1 and not answer.results and answer.unresponsive_engines:
            raise RetrieverFault(
                f"{calls.url}/search: no engine behind SearXNG answered: {answer.unresponsive_engines}"
            )
        before = len(found)
        for hit in (page.hit() for page in answer.results):
            if hit.passage.text.strip():
                found.setdefault(hit.passage.id, hit)
        if len(found) >= depth or len(found) == before:
            break
    return [list(found.values())]


async def _tavily(calls: Calls, queries: Sequence[str], depth: int) -> list[list[Hit]]:
    """Always all that it gives: a search costs the same, and pages are parts of one."""
    body = {"query": queries[0][:WEB_QUERY], "max_results": TAVILY_RESULTS, "search_depth": "basic"}
    answer = await calls.post("/search", _TavilyAnswer, body)
    return [[page.hit() for page in answer.results]]


def _tidy(hits: Iterable[Hit]) -> list[Hit]:
    kept: dict[str, Hit] = {}
    lowest = float("inf")
    for hit in hits:
        if hit.passage.text.strip() and hit.passage.id not in kept:
            lowest = min(lowest, hit.score)
            kept[hit.passage.id] = Hit(hit.passage, lowest)
    return list(kept.values())


DIALECTS = {
    # Jin et al. 2025: search_r1/search/retrieval_server.py of PeterGriffinJin/Search-R1
    "search-r1": Dialect("a retrieval server of Search-R1", _search_r1, "/retrieve"),
    # deploy_servers/retrieve_server of Chen-GX/C-3PO
    "c3po": Dialect("a retrieval server of C-3PO", _c3po, "/search"),
    # https://docs.searxng.org/dev/search_api.html
    "searxng": Dialect(
        "SearXNG",
        _searxng,
        "/search",
        together=1,
        hints={403: "is json among search.formats in the settings.yml of the instance?"},
    ),
    # https://docs.tavily.com/documentation/api-reference/endpoint/search
    "tavily": Dialect("Tavily", _tavily, "/search", together=1, ranks=TAVILY_RESULTS, key_env="TAVILY_API_KEY"),
}
"""By what stands before `+http` in an address."""

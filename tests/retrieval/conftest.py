"""One small corpus, indexed once a session by every method, and one real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from encoders import make_splade
from listening import listening
from search_stubs import EngineStub

from dragoman.core.keys import Keys
from dragoman.core.types import Passage
from dragoman.retrieval import IndexParams, build_index, open_retriever
from dragoman.retrieval.base import Hit, Retriever, span
from dragoman.retrieval.cache import CachedRetriever
from dragoman.retrieval.http.foreign import ForeignRetriever
from dragoman.retrieval.http.server import create_app
from dragoman.retrieval.rerank import RerankedRetriever, RerankParams
from dragoman.retrieval.store import indexed_text

TOWNS = ["Arlen", "Brisa", "Corvo", "Dunmere", "Eskil", "Farrow", "Gildan", "Hestia", "Ivory Bay", "Jorvik"]
TRADES = ["glass", "salt", "wool", "copper"]


def make_corpus() -> list[Passage]:
    """46 passages: towns and their trades, one without a title, scripts other than Latin, and two that are equal."""
    passages = [
        Passage(
            f"{town.lower().replace(' ', '-')}-{trade}",
            f"{trade.capitalize()} of {town}",
            f"{town} is known for its {trade}. The {trade} market of {town} opens {n + 1} days a week.",
        )
        for town in TOWNS
        for n, trade in enumerate(TRADES)
    ]
    return [
        *passages,
        Passage("untitled", "", "A harbour without a name lies east of the lighthouse."),
        Passage("tokyo", "東京", "東京は日本の首都です。"),
        Passage("zurich", "Zürich", "Zürich liegt an der Limmat. Grüße 😀 aus der Stadt."),
        Passage("twin-b", "Twin", "The same words stand in both of these passages."),
        Passage("twin-a", "Twin", "The same words stand in both of these passages."),
        Passage("last", "Colophon", "Printed by nobody in particular."),
    ]


@pytest.fixture(scope="session")
def corpus() -> list[Passage]:
    return make_corpus()


@pytest.fixture(scope="session")
def splade(corpus: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for method `sparse` that knows the words of the corpus."""
    return make_splade(tmp_path_factory.mktemp("splade"), map(indexed_text, corpus))


@pytest.fixture(scope="session")
def indexes(corpus: list[Passage], splade: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the indexes: two of the methods inside the hybrid one."""
    folder = tmp_path_factory.mktemp("indexes") / "hybrid"
    build_index(iter(corpus), folder, IndexParams(method="hybrid", pool=8))
    for method in ("graph", "ideal"):
        build_index(iter(corpus), folder.with_name(method), IndexParams(method=method))
    build_index(iter(corpus), folder.with_name("sparse"), IndexParams(method="sparse", checkpoint=str(splade)))
    return {
        "sparse": folder.with_name("sparse"),
        "hybrid": folder,
        "bm25": folder / "bm25",
        "dense": folder / "dense",
        "graph": folder.with_name("graph"),
        "ideal": folder.with_name("ideal"),
    }


@contextlib.contextmanager
def serving(retriever: Retriever, keys: Keys | None = None) -> Iterator[str]:
    """The URL of a real server in a thread of its own."""
    with listening(create_app(retriever, keys=keys)) as url:
        yield url


@pytest.fixture(scope="session")
def serve() -> Callable[[Retriever], AbstractContextManager[str]]:
    return serving


def _opened(method: str) -> Callable:
    """A fixture called as the method: an index of it, opened once."""

    @pytest.fixture(scope="session", name=method)
    def opened(indexes: dict[str, Path]) -> Iterator[Retriever]:
        retriever = open_retriever(indexes[method])
        yield retriever
        asyncio.run(retriever.close())

    return opened


bm25, dense, hybrid, graph, ideal, sparse = map(_opened, ("bm25", "dense", "hybrid", "graph", "ideal", "sparse"))


@pytest.fixture(scope="session")
def http(bm25: Retriever) -> Iterator[Retriever]:
    with serving(bm25) as url:
        yield open_retriever(url)


@pytest.fixture(scope="session")
def server(bm25: Retriever, corpus: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """An index of method `server`."""
    folder = tmp_path_factory.mktemp("server") / "index"
    with serving(bm25) as url:
        build_index(corpus, folder, IndexParams(method="server", url=url))
        yield open_retriever(folder)


@pytest.fixture(scope="session")
def rm3(corpus: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """What method `sparse` is where no checkpoint is set."""
    folder = tmp_path_factory.mktemp("rm3") / "index"
    build_index(corpus, folder, IndexParams(method="sparse"))
    retriever = open_retriever(folder)
    yield retriever
    asyncio.run(retriever.close())


class Overlap:
    """In the place of a cross-encoder: the share of the words of both texts that both have."""

    def predict(self, pairs: Sequence[tuple[str, str]], **_: object) -> list[float]:
        return [self.one(*(set(re.findall(r"\w+", text.casefold())) for text in pair)) for pair in pairs]

    def one(self, query: set[str], text: set[str]) -> float:
        return len(query & text) / len(query | text)


@pytest.fixture(scope="session")
def reranked(bm25: Retriever) -> Retriever:
    return RerankedRetriever(bm25, Overlap(), RerankParams(cross_encoder="overlap", candidates=8), "0" * 64)


@pytest.fixture(scope="session")
def engines(bm25: Retriever) -> Iterator[tuple[EngineStub, str]]:
    """A stub of SearXNG and of Tavily, and its address."""
    stub = EngineStub(bm25)
    with listening(stub.app) as url:
        yield stub, url


@pytest.fixture(scope="session")
def searxng(engines: tuple[EngineStub, str]) -> Retriever:
    return ForeignRetriever("searxng", engines[1])


@pytest.fixture(scope="session")
def search_r1(bm25: Retriever) -> Iterator[Retriever]:
    with serving(bm25) as url:
        yield open_retriever(f"search-r1+{url}/retrieve")


@pytest.fixture(scope="session")
def c3po(bm25: Retriever) -> Iterator[Retriever]:
    with serving(bm25) as url:
        yield open_retriever(f"c3po+{url}")


class ListRetriever:
    """Finds the same passages for every query, in the order given; counts and can delay or fail its searches."""

    def __init__(self, hits: Sequence[Hit], fingerprint: str = "list", delay: float = 0.0) -> None:
        self.hits = list(hits)
        self.fingerprint = fingerprint
        self.passage_count = len(hits)
        self.delay = delay
        self.failure: Exception | None = None
        self.searched: list[str] = []
        self.closed = False

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        first, last = span(k, page)
        self.searched += queries
        await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return [self.hits[first:last] for _ in queries]

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def listed() -> Callable[..., ListRetriever]:
    """Makes a retriever of passage ids, best first, with falling scores."""

    def make(ids: Sequence[str], fingerprint: str = "list", delay: float = 0.0) -> ListRetriever:
        hits = [Hit(Passage(id, f"Title {id}", f"Text of {id}."), float(len(ids) - n)) for n, id in enumerate(ids)]
        return ListRetriever(hits, fingerprint, delay)

    return make


LOCAL = ("bm25", "rm3", "dense", "sparse", "hybrid", "graph", "ideal", "cached", "reranked")
SERVED = ("http", "server", "search_r1", "c3po", "searxng")


@pytest.fixture(scope="session", params=[*LOCAL, *SERVED])
def retriever(request: pytest.FixtureRequest) -> Retriever:
    """Every kind of retriever over the same corpus."""
    if request.param == "cached":
        return CachedRetriever(request.getfixturevalue("bm25"))
    return request.getfixturevalue(request.param)

"""Servers that are not ours: what is said to each, what they may answer, and keys that nobody sees."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from listening import listening
from search_stubs import TAVILY_KEY, EngineStub

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval import IndexParams, open_retriever
from dragoman.retrieval.http.foreign import ForeignRetriever
from dragoman.retrieval.http.settings import ServerParams

QUICK = ServerParams(retries=1, timeout=10)


@pytest.fixture
def engine(engines: tuple[EngineStub, str]) -> Iterator[tuple[EngineStub, str]]:
    stub, url = engines
    stub.asked.clear()
    yield stub, url
    stub.answers.clear()


def results(*urls: str, **more: Any) -> JSONResponse:
    return JSONResponse({"results": [{"url": url, "title": "T", "content": f"Of {url}.", **more} for url in urls]})


async def test_searxng_is_asked_for_as_many_pages_as_it_takes(engine: tuple[EngineStub, str]) -> None:
    stub, url = engine
    retriever = ForeignRetriever("searxng", url, QUICK)
    [hits] = await retriever.search(["glass"], 4)
    assert stub.asked == [{"q": "glass", "format": "json", "pageno": 1}]
    assert hits[0].passage.title.startswith("Glass of ")
    stub.answers = [results("a", "b"), results("b", "c", score=9.0), results("c")]
    [hits] = await retriever.search(["glass"], 3, 0)
    assert [hit.passage.id for hit in hits] == ["a", "b", "c"]
    assert [hit.score for hit in hits] == [0, 0, 0]  # never above the one before
    assert [asked["pageno"] for asked in stub.asked] == [1, 1, 2]


async def test_results_without_text_are_left_out(engine: tuple[EngineStub, str]) -> None:
    stub, url = engine
    stub.answers = [
        JSONResponse(
            {"results": [{"url": "a", "title": "A"}, {"url": "b", "content": " "}, {"url": "c", "content": "C."}]}
        ),
        JSONResponse({"results": []}),
    ]
    [[hit]] = await ForeignRetriever("searxng", url, QUICK).search(["x"], 5)
    assert hit.passage == Passage("c", "", "C.")


async def test_tavily_gets_its_key_and_nobody_else_sees_it(
    engine: tuple[EngineStub, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stub, url = engine
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UserError, match="Tavily needs a key: put it into the environment variable TAVILY_API_KEY"):
        ForeignRetriever("tavily", url, QUICK)
    monkeypatch.setenv("TAVILY_API_KEY", TAVILY_KEY)
    retriever = ForeignRetriever("tavily", url, QUICK)
    [first], [second] = await retriever.search(["glass"], 6), await retriever.search(["glass"], 6, 1)
    assert stub.asked[0] == {"query": "glass", "max_results": 20, "search_depth": "basic"}
    assert len(first) == 6 and len({hit.passage.id for hit in [*first, *second]}) == len(first) + len(second)
    assert await retriever.search(["glass"], 20, 1) == [[]]
    stub.answers = [JSONResponse({"detail": f"bad key {TAVILY_KEY}"}, 401)]
    with pytest.raises(RetrieverFault, match=r"401.*bad key \*\*\*.*is the key in TAVILY_API_KEY right") as caught:
        await retriever.search(["glass"], 1)
    shown = [str(caught.value), repr(retriever), retriever.fingerprint, retriever.url, caplog.text]
    assert not any(TAVILY_KEY in text for text in shown)


async def test_the_variable_of_the_key_is_a_setting(
    engine: tuple[EngineStub, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", TAVILY_KEY)
    retriever = open_retriever(f"tavily+{engine[1]}/search", IndexParams(server=ServerParams(key_env="MY_KEY")))
    [[hit]] = await retriever.search(["glass market of Arlen"], 1)
    assert hit.passage.id == "arlen-glass"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            HTMLResponse("<html>\n<title>Are you human?</title></html>"),
            "not an answer of SearXNG .*text/html.* came: '<html>",
        ),
        (
            JSONResponse({"results": [{"title": "no address"}]}),
            r"not an answer of SearXNG \(results.0.url: Field required",
        ),
        (JSONResponse({}, 403), "refused with status 403: '{}' .*json among search.formats"),
        (JSONResponse({"results": [], "unresponsive_engines": [["bing", "timeout"]]}), "no engine .*'bing', 'timeout'"),
    ],
)
async def test_wrong_answers_name_the_url_and_what_to_do(
    engine: tuple[EngineStub, str], answer: Any, message: str
) -> None:
    stub, url = engine
    stub.answers = [answer]
    with pytest.raises(RetrieverFault, match=message) as caught:
        await ForeignRetriever("searxng", url, QUICK).search(["x"], 1)
    assert f"{url}/search" in str(caught.value)
    assert len(stub.asked) == 1  # such an answer would come again


async def test_a_server_that_is_busy_is_asked_again(engine: tuple[EngineStub, str]) -> None:
    stub, url = engine
    stub.answers = [JSONResponse({}, 429, {"Retry-After": "0.01"})]
    [[hit]] = await ForeignRetriever("searxng", url, QUICK, backoff=0.01).search(["glass market of Arlen"], 1)
    assert hit.passage.id == "arlen-glass"
    assert len(stub.asked) == 2


async def test_requests_begin_no_faster_than_the_pause_allows(engine: tuple[EngineStub, str]) -> None:
    retriever = ForeignRetriever("searxng", engine[1], ServerParams(pause=0.05))
    began = time.monotonic()
    await retriever.search(["glass", "wool", "salt", "copper"], 1)
    assert time.monotonic() - began >= 0.15


async def test_a_retry_begins_no_sooner_than_the_pause_allows(engine: tuple[EngineStub, str]) -> None:
    stub, url = engine
    stub.answers = [JSONResponse({}, 429), JSONResponse({}, 429, {"Retry-After": "0"})]
    retriever = ForeignRetriever("searxng", url, ServerParams(retries=2, pause=0.2), backoff=0.001)
    began = time.monotonic()
    [[_]] = await retriever.search(["glass market of Arlen"], 1)
    assert len(stub.asked) == 3 and time.monotonic() - began >= 0.4


async def test_search_r1_is_asked_as_its_own_client_asks() -> None:
    app, asked = FastAPI(), []

    @app.post("/retrieve")
    async def retrieve(body: dict[str, Any]) -> Any:
        asked.append(body)
        dense = {"id": "7", "contents": '"Bhutan"\nBhutan is a country.\nIts capital is Thimphu.'}
        words = {"id": 8, "title": "Nepal", "text": "Nepal is another.", "contents": '"Nepal"\nNepal is another.'}
        bare = {"contents": "No title here."}
        row = [{"document": document, "score": score} for document, score in ((dense, 2.5), (words, 2.0), (bare, 1.0))]
        return {"result": [row for _ in body["queries"]]}

    with listening(app) as url:
        retriever = open_retriever(f"search-r1+{url}/retrieve")
        one, other = await retriever.search(["a", "b"], 2), await retriever.search(["a"], 2, 1)
        await retriever.close()
    assert asked[0] == {"queries": ["a", "b"], "topk": 2, "return_scores": True}
    assert asked[1]["topk"] == 4
    assert [hit.passage for hit in one[1]] == [
        Passage("7", "Bhutan", "Bhutan is a country.\nIts capital is Thimphu."),
        Passage("8", "Nepal", "Nepal is another."),
    ]
    [[last]] = other
    assert last.passage.text == "No title here." and last.passage.title == "" and last.passage.id and last.score == 1.0


async def test_c3po_is_asked_as_its_own_client_asks() -> None:
    app, asked = FastAPI(), []

    @app.post("/search")
    async def search(body: dict[str, Any]) -> Any:
        asked.append(body)
        return [[{"id": "7", "title": "Bhutan", "text": "A country.", "score": 0.9}] for _ in body["queries"]][:1]

    with listening(app) as url:
        retriever = open_retriever(f"c3po+{url}/search")
        [[hit]] = await retriever.search(["a"], 2)
        with pytest.raises(RetrieverFault, match="gave 1 results for 2 queries"):
            await retriever.search(["a", "b"], 2)
        await retriever.close()
    assert hit.passage == Passage("7", "Bhutan", "A country.")
    assert asked[0] == {"queries": ["a"], "n_docs": 2}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "google+http://localhost:1",
            "'google' is no kind of retrieval server: write one of search-r1, c3po, searxng, tavily",
        ),
        ("searxng+http://localhost:port", "not the address of a retriever"),
        ("searxng+https://me:secret@host", "not the address of a retriever: the URL of host holds a user"),
    ],
)
def test_refuses_what_is_no_address(address: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_retriever(address)
    assert "secret" not in str(caught.value)


def test_fingerprints_name_kind_and_address() -> None:
    kinds = [("searxng", "http://a"), ("searxng", "http://b"), ("c3po", "http://a"), ("search-r1", "http://a")]
    prints = [ForeignRetriever(kind, url).fingerprint for kind, url in kinds]
    assert len(set(prints)) == 4
    assert all(found.startswith(f"{kind}-") for found, (kind, _) in zip(prints, kinds, strict=True))
    assert ForeignRetriever("searxng", "http://a/search/").fingerprint == prints[0]


def test_a_revision_tells_the_indexes_behind_one_address_apart() -> None:
    opened = [
        open_retriever("search-r1+http://a", IndexParams(server=ServerParams(revision=revision)))
        for revision in ("", "may", "june")
    ]
    assert len({retriever.fingerprint for retriever in opened}) == 3
    assert opened[0].fingerprint == "search-r1-b0b59b60a141885e"  # as it was: episodes of before stay

"""The routes of the server, each as its callers know it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import run
from fastapi.testclient import TestClient

from dragoman.core.errors import RetrieverFault
from dragoman.core.keys import Keys, make_key
from dragoman.retrieval import Retriever
from dragoman.retrieval.http import limits
from dragoman.retrieval.http.client import KEY_ENV, HttpRetriever
from dragoman.retrieval.http.limits import MOST_BODY_BYTES
from dragoman.retrieval.http.server import create_app


@pytest.fixture
async def client(bm25: Retriever) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(bm25))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_native_route(client: httpx.AsyncClient, bm25: Retriever) -> None:
    body = {"queries": ["salt Brisa", "東京", "qqxyzzy"], "k": 2, "page": 0}
    answer = (await client.post("/v1/search", json=body)).json()
    assert answer["fingerprint"] == bm25.fingerprint
    salt, tokyo, unknown = answer["results"]
    assert salt[0].keys() == {"id", "title", "text", "score"}
    assert (salt[0]["id"], salt[0]["title"]) == ("brisa-salt", "Salt of Brisa")
    assert tokyo[0]["id"] == "tokyo"
    assert unknown == []
    second = (await client.post("/v1/search", json={**body, "k": 1, "page": 1})).json()
    assert second["results"][0] == salt[1:2]


async def test_single_search(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/search", params={"q": "salt Brisa", "k": 1})).json()
    assert [hit["id"] for hit in answer["results"]] == ["brisa-salt"]
    assert len((await client.get("/search", params={"q": "salt"})).json()["results"]) == 5


async def test_route_of_c3po(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/search", json={"queries": ["salt Brisa", "wool Jorvik"], "n_docs": 3})).json()
    assert [hits[0]["id"] for hits in answer] == ["brisa-salt", "jorvik-wool"]
    assert answer[0][0].keys() == {"id", "title", "text", "score"}
    assert len(answer[0]) == 3
    assert len((await client.post("/search", json={"queries": ["salt"]})).json()[0]) == 10


async def test_route_of_search_r1(client: httpx.AsyncClient) -> None:
    body = {"queries": ["salt Brisa"], "topk": 2, "return_scores": True}
    [hits] = (await client.post("/retrieve", json=body)).json()["result"]
    contents = "Salt of Brisa\nBrisa is known for its salt. The salt market of Brisa opens 2 days a week."
    assert hits[0] == {"document": {"id": "brisa-salt", "contents": contents}, "score": hits[0]["score"]}
    assert hits[0]["score"] >= hits[1]["score"] > 0
    [documents] = (await client.post("/retrieve", json={"queries": ["salt Brisa"]})).json()["result"]
    assert documents[0] == {"id": "brisa-salt", "contents": contents}
    assert len(documents) == 3
    nothing = await client.post("/retrieve", json={"queries": ["qqxyzzy"], "return_scores": True})
    assert nothing.json() == {"result": [[]]}


async def test_health_route(client: httpx.AsyncClient, bm25: Retriever, corpus: list[Any]) -> None:
    answer = (await client.get("/healthz")).json()
    assert answer == {"status": "ok", "fingerprint": bm25.fingerprint, "passages": len(corpus)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/search", {"queries": [""]}),
        ("/v1/search", {"queries": ["good", " \n"]}),
        ("/v1/search", {"queries": []}),
        ("/v1/search", {"queries": ["q"] * 1001}),
        ("/v1/search", {"queries": ["q"], "k": 0}),
        ("/v1/search", {"queries": ["q"], "k": 101}),
        ("/v1/search", {"queries": ["q"], "page": -1}),
        ("/v1/search", {"queries": ["q"], "top_k": 3}),
        ("/v1/search", {"queries": ["q" * 20_001]}),
        ("/v1/search", {"queries": "q"}),
        ("/search", {"queries": ["q"], "n_docs": 101}),
        ("/search", {"queries": [""]}),
        ("/retrieve", {"queries": ["q"], "topk": 0}),
        ("/retrieve", {"queries": [""]}),
    ],
)
async def test_requests_outside_the_limits_are_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 422
    assert response.json()["detail"]


async def test_half_a_surrogate_pair_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/search", content=b'{"queries": ["half \\ud83d"]}')
    assert response.status_code == 422


@pytest.mark.parametrize("query", ["", "  "])
async def test_single_search_refuses_a_blank_query(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get("/search", params={"q": query})).status_code == 422


async def test_a_failed_search_is_503_with_the_reason(listed: Callable[..., Any]) -> None:
    inner = listed("a")
    inner.failure = RetrieverFault("the disk is on fire")
    transport = httpx.ASGITransport(app=create_app(inner))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/v1/search", json={"queries": ["x"]})
    assert response.status_code == 503
    assert response.json() == {"detail": "the disk is on fire"}


async def test_a_body_without_end_is_refused_before_it_is_read_whole(client: httpx.AsyncClient) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += 1 << 20
            yield b"x" * (1 << 20)

    response = await client.post("/v1/search", content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 413 and "at most" in response.json()["detail"]
    assert sent <= MOST_BODY_BYTES + (1 << 20)


async def test_a_body_that_does_not_come_is_not_waited_for(client: httpx.AsyncClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.1)

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    response = await client.post("/v1/search", content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 408 and response.headers["connection"] == "close"


async def test_a_search_that_hangs_and_one_too_many_are_told_to_come_again(listed: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "SEARCH_S", 0.2)
    monkeypatch.setattr(limits, "MOST_AT_ONCE", 2)
    transport = httpx.ASGITransport(app=create_app(listed("abc", delay=30)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = await asyncio.gather(*(client.get("/search", params={"q": "x"}) for _ in range(3)))
        assert [a.status_code for a in answers] == [503] * 3
        assert sum("under way" in a.text for a in answers) == 1 and sum("no answer in" in a.text for a in answers) == 2
        assert (await client.get("/healthz")).status_code == 200


async def test_one_key_that_has_its_share_leaves_places_for_others(
    listed: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(limits, "SEARCH_S", 0.3)
    monkeypatch.setattr(limits, "MOST_PER_KEY", 2, raising=False)
    keys = [{"Authorization": f"Bearer {make_key(tmp_path / 'keys', name)}"} for name in ("greedy", "modest")]
    greedy, modest = keys
    transport = httpx.ASGITransport(app=create_app(listed("abc", delay=30), keys=Keys(tmp_path / "keys")))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for _ in range(2):  # the second time shows that places are given back
            asked = (client.get("/search", params={"q": "x"}, headers=key) for key in [greedy] * 5 + [modest] * 2)
            answers = await asyncio.gather(*asked)
            assert [a.status_code for a in answers] == [503, 503, 429, 429, 429, 503, 503]
            assert all("2 requests of this key" in a.text and a.headers["retry-after"] == "1" for a in answers[2:5])
            assert all("no answer in" in a.text for a in answers[5:])


async def test_who_searches_needs_a_key_where_there_are_some(
    bm25: Retriever, serve: Callable[..., Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path / "keys", "endpoint")
    with serve(bm25, keys=Keys(tmp_path / "keys")) as url:
        retriever = HttpRetriever(url)
        with pytest.raises(RetrieverFault, match=f"401.*is the key in {KEY_ENV} right"):
            await retriever.search(["salt Brisa"], 1)
        monkeypatch.setenv(KEY_ENV, key)
        keyed = HttpRetriever(url)
        ((hit,),) = await keyed.search(["salt Brisa"], 1)
        assert hit.passage.id == "brisa-salt"
        await retriever.close()
        await keyed.close()


def test_another_address_than_loopback_needs_keys(capsys: Any) -> None:
    code, _, err = run(capsys, "serve-retriever", "--host", "0.0.0.0")
    assert code == 2 and "let --keys name a file of API keys, or say --insecure" in err


def test_the_page_that_it_names_on_starting_is_there(
    indexes: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn

    apps: list[Any] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: apps.append(app))
    code, _, err = run(capsys, "serve-retriever", "--index", str(indexes["bm25"]))
    assert code == 0
    (url,) = re.findall(r"(http\S+) describes the routes", err)
    with TestClient(apps[0]) as browser:
        assert browser.get(url).status_code == 200

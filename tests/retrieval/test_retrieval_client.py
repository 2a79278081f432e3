"""The client against real servers: ours, and a stub that misbehaves in every known way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from listening import listening

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval import IndexParams, open_retriever
from dragoman.retrieval.http.calls import Calls, Patience
from dragoman.retrieval.http.client import HttpRetriever
from dragoman.retrieval.http.settings import ServerParams

HEALTH = {"status": "ok", "fingerprint": "stub", "passages": 3}
HIT = {"id": "a", "title": "", "text": "Found.", "score": 1.5}
FOUND = {"fingerprint": "stub", "results": [[HIT]]}


class Stub:
    """A server that answers searches from a script of (status, headers, body), and sleeps where the body is a number.

    A body that is a list of bytes comes in these pieces, 0.1 s apart, and is said to be longer than it is.
    """

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], Any]] = []
        self.requests: list[dict[str, Any]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, {}, HEALTH)

            def do_POST(self) -> None:
                stub.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer(*(stub.script.pop(0) if stub.script else (200, {}, FOUND)))

            def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
                if isinstance(body, float):
                    time.sleep(body)
                    return
                if isinstance(body, list):
                    self.break_off(body)
                    return
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def break_off(self, pieces: list[bytes]) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                with contextlib.suppress(OSError):  # the client has had enough
                    for piece in pieces:
                        self.wfile.write(piece)
                        self.wfile.flush()
                        time.sleep(0.1)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


def client(stub: Stub, **settings: Any) -> HttpRetriever:
    return HttpRetriever(stub.url, **({"timeout": 10.0, "retries": 2, "backoff": 0.01} | settings))


HTML = (200, {"Content-Type": "text/html"}, b"<html>\n<title>Please log in</title></html>")


async def test_temporary_faults_are_asked_again(stub: Stub) -> None:
    retriever = client(stub)
    assert retriever.fingerprint == "stub"
    assert retriever.passage_count == 3
    for fault in [(429, {"Retry-After": "0.01"}, {}), (500, {}, b"oops"), (503, {"Retry-After": "soon"}, {})]:
        stub.script = [fault]
        [[hit]] = await retriever.search(["x"], 1)
        assert hit.passage.id == "a"
        assert stub.script == []
    assert len(stub.requests) == 6
    await retriever.close()


async def test_a_server_that_hangs_is_asked_again(stub: Stub) -> None:
    retriever = client(stub, timeout=0.3)
    stub.script = [(200, {}, 0.6)]
    [[hit]] = await retriever.search(["x"], 1)
    assert hit.passage.id == "a"
    assert len(stub.requests) >= 2
    await retriever.close()


async def test_an_answer_that_breaks_off_is_asked_for_again(stub: Stub) -> None:
    retriever = client(stub)
    stub.script = [(200, {}, [b'{"fingerprint"'])]
    [[hit]] = await retriever.search(["x"], 1)
    assert hit.passage.id == "a" and len(stub.requests) == 2
    await retriever.close()


@pytest.mark.parametrize(
    ("fault", "seconds", "message"),
    [
        ((500, {}, b"Internal Server Error"), 10, "status 500, 'Internal Server Error'"),
        ((429, {}, {"detail": "slow down"}), 10, "status 429.*slow down"),
        ((200, {}, 20.0), 0.6, "ReadTimeout"),
        ((200, {}, [b" "]), 10, "RemoteProtocolError"),
        ((200, {}, [b" "] * 200), 0.6, r"ReadTimeout no whole answer in 1\.2 s"),
    ],
)
async def test_lasting_faults_name_the_url(
    stub: Stub, fault: tuple[int, dict[str, str], Any], seconds: float, message: str
) -> None:
    retriever = client(stub, timeout=seconds, connect_timeout=seconds)
    stub.script = [fault] * 3
    with pytest.raises(RetrieverFault, match=f"{stub.url}/v1/search: no answer in 3 attempts, the last: {message}"):
        await retriever.search(["x"], 1)
    assert len(stub.requests) == 3
    await retriever.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (HTML, "text/html came: '<html> <title>Please log in"),
        ((200, {}, b"{'fingerprint'"), "not an answer of dragoman's retrieval server"),
        ((200, {}, {"fingerprint": "stub"}), "results: Field required"),
        ((200, {}, FOUND | {"results": [[{**HIT, "text": ""}]]}), "results.0.0.text"),
        ((200, {}, FOUND | {"results": [[{**HIT, "title": 7}]]}), "results.0.0.title: Input should be a valid string"),
        ((200, {}, b'{"fingerprint":"stub","results":[[{"id":"a","title":"","text":"t","score":NaN}]]}'), "score"),
        ((200, {}, FOUND | {"results": []}), "gave 0 results for 1 queries"),
        ((200, {}, FOUND | {"fingerprint": "other"}), "now serves the index other, not stub"),
        ((404, {}, {"detail": "Not Found"}), "refused with status 404: .*Not Found"),
        ((302, {"Location": "/login"}, b""), "refused with status 302"),
    ],
)
async def test_wrong_answers_name_the_url_and_what_came(
    stub: Stub, answer: tuple[int, dict[str, str], Any], message: str
) -> None:
    retriever = client(stub)
    stub.script = [answer]
    with pytest.raises(RetrieverFault, match=message) as caught:
        await retriever.search(["x"], 1)
    assert stub.url in str(caught.value)
    assert len(stub.requests) == 1  # such an answer would come again
    await retriever.close()


def test_refused_connection_names_the_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RetrieverFault, match=f"{url}/healthz: no answer in 2 attempts, the last: ConnectError"):
            HttpRetriever(url, retries=1, backoff=0.01)


@pytest.mark.parametrize("url", ["ftp://host", "localhost:8000", "http://host:port"])
def test_refuses_what_is_no_address(url: str) -> None:
    with pytest.raises(UserError, match="not the address of a retriever"):
        HttpRetriever(url)


def test_a_key_that_no_header_can_hold_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush\nhush")
    with pytest.raises(UserError, match="MY_KEY") as refused:
        HttpRetriever("http://localhost:8000", key_env="MY_KEY")
    assert "hush" not in str(refused.value)


async def test_a_key_in_what_fails_or_is_answered_is_hidden_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    key, headers = "hush-" * 8, list[str]()
    monkeypatch.setenv("MY_KEY", f"{key}\n")

    def reply(request: httpx.Request) -> httpx.Response:
        headers.append(request.headers["authorization"])
        if request.url.path == "/fails":
            raise httpx.RemoteProtocolError(f"illegal header line: {key}")
        return httpx.Response(401, text="x" * 110 + key)

    calls = Calls("http://a", "a stub", Patience(retries=0), "MY_KEY")
    line = calls._line()
    line.client = httpx.AsyncClient(transport=httpx.MockTransport(reply), headers=line.client.headers)
    for path, told in (("/fails", r"illegal header line: \*\*\*"), ("/refuses", r"401: 'x{110}\*\*\*'")):
        with pytest.raises(RetrieverFault, match=told) as caught:
            await calls.get(path, dict)
        assert "hush" not in str(caught.value)
    assert headers == [f"Bearer {key}"] * 2
    await calls.close()


async def test_large_searches_are_split(
    listed: Callable[..., Any], serve: Callable[[Any], AbstractContextManager[str]]
) -> None:
    inner = listed([f"d{n}" for n in range(450)])
    with serve(inner) as url:
        retriever = await asyncio.to_thread(HttpRetriever, url + "/")
        [everything] = await retriever.search(["x"], 1000)
        assert [hit.passage.id for hit in everything] == [f"d{n}" for n in range(450)]
        [page] = await retriever.search(["x"], 150, 1)
        assert [hit.passage.id for hit in page] == [f"d{n}" for n in range(150, 300)]
        many = await retriever.search([f"q{n}" for n in range(2500)], 1)
        assert [hits[0].passage.id for hits in many] == ["d0"] * 2500
        await retriever.close()


def test_serves_one_event_loop_after_another(stub: Stub) -> None:
    retriever = client(stub)

    async def search() -> str:
        [[hit]] = await retriever.search(["x"], 1)
        await retriever.close()
        return hit.passage.id

    assert [asyncio.run(search()) for _ in range(3)] == ["a"] * 3


async def test_a_server_that_does_not_know_the_route_is_not_said_to_lack_passages(stub: Stub) -> None:
    retriever = client(stub)
    stub.script = [(404, {}, {"detail": "Not Found"}), (200, {}, {"missing": ["b"]})]
    assert await retriever.missing(["a", "b"]) == []
    assert await retriever.missing(["a", "b"]) == ["b"]
    assert stub.requests == [{"ids": ["a", "b"]}] * 2
    await retriever.close()


class Busy:
    """An adapter of one's own that takes its time, and counts the searches under way."""

    def __init__(self) -> None:
        self.under_way = self.most = 0
        self.began: list[float] = []
        self.app = FastAPI()
        self.app.get("/healthz")(lambda: HEALTH)
        self.app.post("/v1/search")(self.search)

    async def search(self) -> dict[str, Any]:
        self.began.append(time.monotonic())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.05)
        self.under_way -= 1
        return FOUND


@pytest.mark.parametrize(
    ("server", "most"),
    [({"at_once": 2}, 2), ({}, 12), ({"at_once": 12, "pause": 0.01}, 12)],
    ids=["at-once", "usual", "pause"],
)
async def test_an_address_without_a_prefix_is_asked_as_the_settings_say(server: dict[str, Any], most: int) -> None:
    busy = Busy()
    with listening(busy.app) as url:
        retriever = await asyncio.to_thread(open_retriever, url, IndexParams(server=ServerParams(**server)))
        await asyncio.gather(*(retriever.search([f"q{n}"], 1) for n in range(12)))
        await retriever.close()
    assert len(busy.began) == 12 and busy.most <= most and (busy.most > 2 or most == 2)
    assert busy.began[-1] - busy.began[0] >= 11 * server.get("pause", 0.0) * 0.9


@pytest.mark.parametrize("hit", [{**HIT, "title": None}, {key: HIT[key] for key in ("id", "text", "score")}])
async def test_a_title_that_is_null_or_missing_is_empty(stub: Stub, hit: dict[str, Any]) -> None:
    retriever = client(stub)
    stub.script = [(200, {}, FOUND | {"results": [[hit]]})]
    [[found]] = await retriever.search(["x"], 1)
    assert found.passage == Passage("a", "", "Found.")
    await retriever.close()

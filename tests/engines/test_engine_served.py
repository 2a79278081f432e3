"""What tells the models apart that a server runs under one name, one after the other."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, StreamingResponse
from openai_stub import serving

from dragoman.core.errors import EngineFault, UserError
from dragoman.engines import EnginePool, open_engine, openai, served
from dragoman.engines.base import Request
from dragoman.engines.cache import AnswerCache, CachedEngine
from dragoman.engines.served import Served
from dragoman.engines.settings import EngineParams

LONG_AGO = 1_700_000_000


class Server(FastAPI):
    """Serves one model as `llm`, which answers with its own name. `card` is what it says of it."""

    def __init__(self, answer: str, **card: Any) -> None:
        super().__init__()
        self.answer, self.card, self.asked, self.listed = answer, card, 0, 0
        self.bodies: list[dict[str, Any]] = []
        self.get("/v1/models")(self.models)
        self.post("/v1/chat/completions")(self.chat)

    async def models(self) -> Response:
        self.listed += 1
        card = {"created": int(time.time()), **self.card}
        return JSONResponse({"object": "list", "data": [{"id": "llm", "object": "model", **card}]})

    async def chat(self, body: dict[str, Any]) -> JSONResponse:
        self.asked += 1
        self.bodies.append(body)
        choice = {"index": 0, "message": {"role": "assistant", "content": self.answer}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


STAMP_S = served._STAMP_S


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(served, "_STAMP_S", 600.0)  # the Date of a `PromptServer` is that of its start


@contextmanager
def served_by(*servers: Server, **settings: Any) -> Iterator[EngineParams]:
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(serving(server)) for server in servers)
        yield EngineParams(engine="openai", model="llm", urls=urls, structured="none", retries=1, **settings)


async def test_a_model_that_takes_the_place_of_another_at_one_url_answers_itself(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path, 1)
    server = Server("model A", root="/models/a")
    with served_by(server) as settings:
        for name, calls in (("A", 1), ("A", 1), ("B", 2)):
            server.answer, server.card = f"model {name}", {"root": f"/models/{name}"}
            engine = CachedEngine(open_engine(settings, pool=EnginePool()), cache)
            (result,) = await engine.generate([Request(prompt=(("user", "Who are you?"),), max_tokens=5)])
            await engine.close()
            assert (result.completions[0].text, server.asked) == (f"model {name}", calls)
    cache.close()


async def test_a_model_that_is_swapped_under_an_open_engine_does_not_answer_in_the_name_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the connections that were open all along, where nothing but time tells, and after a restart at once."""
    monkeypatch.setattr(openai, "CHECK_S", 3600.0)
    cache = AnswerCache(tmp_path, 1)
    before, after = Server("model A", root="/models/a"), Server("model B", root="/models/b")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    listener.close()
    settings = EngineParams(engine="openai", model="llm", urls=(url,), structured="none", retries=1)

    def question(text: str) -> Request:
        return Request(prompt=(("user", text),), max_tokens=5)

    with serving(before, url=url):
        engine = CachedEngine(open_engine(settings, pool=EnginePool()), cache)
        (result,) = await engine.generate([question("first")])
        assert result.completions[0].text == "model A"
        asked = before.listed
        for number in range(5):
            await engine.generate([question(f"no {number}")])
        assert before.listed == asked, "the card is not asked for at each question"
        monkeypatch.setattr(openai, "CHECK_S", 0.0)
        before.card["root"] = "/models/c"
        with pytest.raises(EngineFault, match=rf"{url} runs another model as 'llm' .*/models/a.*/models/c.*restart"):
            await engine.generate([question("second")])
        monkeypatch.setattr(openai, "CHECK_S", 3600.0)
        before.card["root"] = "/models/a"
        await engine.generate([question("it is back")])
    with serving(after, url=url):
        for _ in range(2):
            with pytest.raises(EngineFault, match=r"runs another model .*/models/a.*/models/b"):
                await engine.generate([question("third")])
        (result,) = await engine.generate([question("first")])
        assert result.completions[0].text == "model A", "what the first has answered is still its answer"
        await engine.close()
        again = CachedEngine(open_engine(settings, pool=EnginePool()), cache)
        (result,) = await again.generate([question("third")])
        assert result.completions[0].text == "model B"
        await again.close()
    cache.close()


async def test_a_revision_is_taken_at_its_word_and_no_server_is_asked() -> None:
    server = Server("model A")
    with served_by(server, revision="mine") as settings:
        engine = open_engine(settings, pool=EnginePool())
        await engine.generate([Request(prompt=(("user", "Who?"),), max_tokens=5)])
        await engine.close()
    assert server.listed == 0 and server.asked == 1


async def test_other_fields_of_each_request_are_another_engine_whose_answers_are_kept_apart(tmp_path: Path) -> None:
    cache, pool = AnswerCache(tmp_path, 1), EnginePool()
    server = Server("model A", root="/models/a")
    with served_by(server) as settings:
        other = settings.model_copy(update={"body": {"seed": 1}})
        assert len({settings, other, settings.model_copy(update={"body": {}})}) == 2
        engines = [CachedEngine(open_engine(each, pool=pool), cache) for each in (settings, other, settings)]
        assert len(pool) == 2
        for engine in engines:
            await engine.generate([Request(prompt=(("user", "Who are you?"),), max_tokens=5)])
            await engine.close()
    assert [body.get("seed") for body in server.bodies] == [None, 1]
    cache.close()


@pytest.mark.parametrize("field", ["messages", "prompt", "stream"])
def test_a_field_that_each_request_has_of_its_own_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"body: {field} is no setting"):
        EngineParams(body={field: "x"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"scale": [-float("inf")]}])
def test_a_field_that_json_has_no_number_for_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"body: top_p: JSON has no \.nan and no \.inf"):
        EngineParams(body={"temperature": 0.5, "top_p": value})


def test_a_time_of_making_that_was_taken_for_a_stamp_is_no_other_model() -> None:
    server = Server("", root="/models/a")
    with served_by(server) as settings:
        served = Served(settings)
        server.card["created"] = LONG_AGO
        served.check(settings.urls[0])
        server.card["root"] = "/models/b"
        with pytest.raises(EngineFault, match="another model"):
            served.check(settings.urls[0])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"root": "/models/a"}, {"root": "/models/b"}),
        ({"created": LONG_AGO}, {"created": LONG_AGO + 1}),
        ({"meta": {"size": 100}}, {"meta": {"size": 200}}),
    ],
)
def test_the_identity_of_a_served_model_follows_what_its_card_says_of_it(before: Any, after: Any) -> None:
    server = Server("", **before)
    with served_by(server) as settings:
        first = Served(settings).identity
        assert Served(settings).identity == first
        server.card = after
        assert Served(settings).identity != first


def test_a_time_of_seconds_before_the_answer_is_the_answers_and_an_earlier_one_the_models(monkeypatch) -> None:
    monkeypatch.setattr(served, "_STAMP_S", STAMP_S)
    answered = {"date": "Fri, 27 Nov 2026 12:00:00 GMT"}
    noon = datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()
    assert served._is_stamp({"created": noon - 2}, answered) and not served._is_stamp({"created": noon - 60}, answered)


def test_the_time_of_the_answer_is_no_part_of_the_identity() -> None:
    server = Server("", root="/models/a")
    with served_by(server) as settings:
        stamped = Served(settings).identity
        server.card |= {"created": int(time.time()) - 2}
        assert Served(settings).identity == stamped


@pytest.mark.parametrize("card", [{}, {"root": "llm", "parent": None, "meta": {}}, {"created": 1677610602}])
def test_a_server_that_says_nothing_of_its_model_is_refused_unless_a_revision_names_it(card: Any) -> None:
    with served_by(Server("", **card)) as settings:
        with pytest.raises(UserError, match=rf"{settings.urls[0]} does not say which model it runs.*`revision`"):
            Served(settings)
        assert Served(settings.model_copy(update={"revision": "a"})).identity == "a"


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with (
        served_by(Server("", root="/models/a")) as settings,
        pytest.raises(UserError, match="serves no 'other', but llm"),
    ):
        Served(settings.model_copy(update={"model": "other"}))


def test_servers_that_run_different_models_under_one_name_are_refused_with_both_urls() -> None:
    servers = Server("", root="/models/a"), Server("", root="/models/b")
    with served_by(*servers) as settings, pytest.raises(UserError, match=r"/v1 and http://.*/v1 run different models"):
        Served(settings)


def test_a_server_that_is_not_there_is_a_fault_with_its_url() -> None:
    settings = EngineParams(engine="openai", model="llm", urls=("http://127.0.0.1:9/v1",), retries=1)
    with pytest.raises(EngineFault, match=r"http://127.0.0.1:9/v1/models.*start the server"):
        Served(settings)


def test_a_list_of_models_that_cannot_be_decoded_is_a_fault_with_its_url() -> None:
    app = FastAPI()
    app.get("/v1/models")(lambda: Response(b"no gzip", headers={"content-encoding": "gzip"}))
    with serving(app) as url:
        settings = EngineParams(engine="openai", model="llm", urls=(url,), retries=1)
        with pytest.raises(EngineFault, match=f"{url}/models: DecodingError"):
            Served(settings)


def test_a_key_that_no_header_can_hold_is_refused_before_a_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush\u00a0hush")
    server = Server("", root="/models/a")
    with served_by(server, api_key_env="MY_KEY") as settings, pytest.raises(UserError, match="MY_KEY") as refused:
        Served(settings)
    assert "hush" not in str(refused.value) and server.listed == 0


async def test_a_failure_whose_text_repeats_the_key_is_told_without_it() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("illegal header line: hush-hush")

    settings = EngineParams(engine="openai", model="llm", urls=("http://a/v1",))
    told = r"illegal header line: \*\*\*; start the server"
    async with httpx.AsyncClient(transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(EngineFault, match=told):
            await served._said(client, "http://a/v1", settings, "hush-hush")


def test_a_list_of_models_that_breaks_off_is_asked_for_again() -> None:
    class Breaking(Server):
        async def models(self) -> Response:
            if self.listed:
                return await super().models()
            self.listed += 1
            return Response(b"{", headers={"content-length": "100"})

    server = Breaking("", root="/models/a")
    with served_by(server) as settings:
        assert Served(settings).identity
    assert server.listed == 2


def test_a_list_of_models_that_does_not_end_is_a_fault_after_the_time_to_connect_and_to_answer() -> None:
    async def drip() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" "
            await asyncio.sleep(0.05)

    app = FastAPI()
    app.get("/v1/models")(lambda: StreamingResponse(drip()))
    with serving(app) as url:
        settings = EngineParams(engine="openai", model="llm", urls=(url,), retries=0, connect_timeout_s=0.2)
        with pytest.raises(EngineFault, match=f"{url}/models: ReadTimeout no whole answer in 0.4 s"):
            Served(settings)

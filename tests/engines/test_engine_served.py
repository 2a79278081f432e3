"""What tells the models apart that a server runs under one name, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openai_stub import serving

from dragoman.core.errors import EngineFault, UserError
from dragoman.engines import EnginePool, open_engine, served
from dragoman.engines.base import Request
from dragoman.engines.cache import AnswerCache, CachedEngine
from dragoman.engines.served import served_identity
from dragoman.engines.settings import EngineParams

LONG_AGO = 1_700_000_000


class Server(FastAPI):
    """Serves one model as `llm`, which answers with its own name. `card` is what it says of it."""

    def __init__(self, answer: str, **card: Any) -> None:
        super().__init__()
        self.answer, self.card, self.asked = answer, card, 0
        self.get("/v1/models")(self.models)
        self.post("/v1/chat/completions")(self.chat)

    async def models(self) -> JSONResponse:
        card = {"created": int(time.time()), **self.card}
        return JSONResponse({"object": "list", "data": [{"id": "llm", "object": "model", **card}]})

    async def chat(self, body: dict[str, Any]) -> JSONResponse:
        self.asked += 1
        choice = {"index": 0, "message": {"role": "assistant", "content": self.answer}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_FIRST_WAIT_S", 0.001)


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
        first = served_identity(settings)
        assert served_identity(settings) == first
        server.card = after
        assert served_identity(settings) != first


def test_the_time_of_the_answer_is_no_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("", root="/models/a")
    with served_by(server) as settings:
        stamped = served_identity(settings)
        server.card |= {"created": int(time.time()) - 2}
        assert served_identity(settings) == stamped


@pytest.mark.parametrize("card", [{}, {"root": "llm", "parent": None, "meta": {}}])
def test_a_server_that_says_nothing_of_its_model_is_refused_unless_a_revision_names_it(card: Any) -> None:
    with served_by(Server("", **card)) as settings:
        with pytest.raises(UserError, match=rf"{settings.urls[0]} does not say which model it runs.*`revision`"):
            served_identity(settings)
        assert served_identity(settings.model_copy(update={"revision": "a"})) == "a"


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    with (
        served_by(Server("", root="/models/a")) as settings,
        pytest.raises(UserError, match="serves no 'other', but llm"),
    ):
        served_identity(settings.model_copy(update={"model": "other"}))


def test_servers_that_run_different_models_under_one_name_are_refused_with_both_urls() -> None:
    servers = Server("", root="/models/a"), Server("", root="/models/b")
    with served_by(*servers) as settings, pytest.raises(UserError, match=r"/v1 and http://.*/v1 run different models"):
        served_identity(settings)


def test_a_server_that_is_not_there_is_a_fault_with_its_url() -> None:
    settings = EngineParams(engine="openai", model="llm", urls=("http://127.0.0.1:9/v1",), retries=1)
    with pytest.raises(EngineFault, match=r"http://127.0.0.1:9/v1/models.*start the server"):
        served_identity(settings)

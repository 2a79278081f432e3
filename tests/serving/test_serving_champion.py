"""The champion is followed, and changes without a request that fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil

import httpx
import openai
import psutil
import pytest
from fakes import ListRetriever
from serving_parts import QUESTION, Held, Model, Parts, Registry, ask, eventually, searching
from tiny import make_tiny

from dragoman.config import Params
from dragoman.core.errors import UserError
from dragoman.core.memory import give_back
from dragoman.engines import POOL
from dragoman.engines.settings import EngineParams
from dragoman.engines.transformers import TransformersEngine
from dragoman.registry.policy import publish
from dragoman.registry.versions import Registry as Versions
from dragoman.rollout.backends import Backends
from dragoman.serving import models
from dragoman.serving.champion import RegistryChampion, StageChampion
from dragoman.serving.models import Models, Opened, opener
from dragoman.systems import build

MODELS = ("c3po@champion", "standard")


def parts_with(champion: Registry, *policies: str, seconds: float = 0.0) -> Parts:
    return Parts(
        proxies={policy: Model(searching, seconds=seconds) for policy in policies}, champion=champion, models=MODELS
    )


async def policy_of(client: httpx.AsyncClient) -> str | None:
    body = (await ask(client, model="c3po@champion")).json()
    assert body["choices"][0]["message"]["content"] == "Port Salt"
    return body["dragoman"]["policy"]


async def test_a_promotion_and_a_rollback_are_served_once_they_are_seen():
    registry = Registry("v1")
    parts = parts_with(registry, "v1", "v2")
    old = parts.proxies["v1"]
    async with parts.client() as client:
        assert await policy_of(client) == "v1"
        registry.folder = "v2"
        await eventually(lambda: old.closed == 1)
        assert await policy_of(client) == "v2"
        parts.proxies["v1"] = Model(searching)
        registry.folder = "v1"
        await eventually(lambda: parts.proxies["v2"].closed == 1)
        assert await policy_of(client) == "v1"
        cards = (await client.get("/v1/models")).json()["data"]
        assert cards[0]["dragoman"] == {"system": "c3po", "policy": "v1"}
    assert parts.metric("dragoman_champion_changes_total", outcome="swapped") == 3
    assert parts.proxies["v1"].closed == 1


async def test_what_is_under_way_finishes_on_the_old_policy_which_is_then_closed():
    registry = Registry("v1")
    parts = parts_with(registry, "v1", "v2")
    parts.settings = {"deadline_s": 600}
    old = parts.proxies["v1"] = Held(searching)
    async with parts.client() as client:
        under_way = asyncio.create_task(policy_of(client))
        await eventually(lambda: old.running == 1)
        registry.folder = "v2"
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="swapped") == 2)
        assert await policy_of(client) == "v2"
        assert old.running == 1 and old.closed == 0
        old.go_on.set()
        assert await under_way == "v1"
        await eventually(lambda: old.closed == 1)


@pytest.mark.slow
async def test_200_concurrent_requests_across_swaps_and_none_fails():
    """Over real sockets, with the official client. An engine that is asked after it was closed would fail the request."""
    registry = Registry("v0")
    parts = parts_with(registry, *(f"v{i}" for i in range(8)), seconds=0.03)
    parts.settings = {"concurrency": 32, "queue": 200, "deadline_s": 30}
    served: list[str] = []
    async with parts.server() as url, openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        def swaps() -> float:
            return parts.metric("dragoman_champion_changes_total", outcome="swapped") - 1

        async def one(i: int) -> None:
            await eventually(lambda: swaps() >= i // 25)  # 25 requests wait for each champion
            messages = [{"role": "user", "content": f"{QUESTION} {i}"}]
            answer = await client.chat.completions.create(model="c3po@champion", messages=messages)
            assert answer.choices[0].message.content == "Port Salt"
            assert answer.dragoman["degraded"] is None
            served.append(answer.dragoman["policy"])

        async def promote() -> None:
            for i in range(1, 8):
                # when 5 of the 25 that waited for this champion have ended, the next takes over from it
                await eventually(lambda i=i: len(served) >= 25 * (i - 1) + 5)
                registry.folder = f"v{i}"
                await eventually(lambda i=i: swaps() == i)

        await asyncio.gather(*(one(i) for i in range(200)), promote())
        await eventually(lambda: all(parts.proxies[f"v{i}"].closed == 1 for i in range(7)))
    assert set(served) == {f"v{i}" for i in range(8)}
    assert parts.proxies["v7"].closed == 1


class InTurn(httpx.AsyncBaseTransport):
    """One address before several endpoints: each request goes to the next of them."""

    def __init__(self, *apps) -> None:
        self.turns = itertools.cycle([httpx.ASGITransport(app=app) for app in apps])

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self.turns).handle_async_request(request)


async def test_two_replicas_behind_one_address_follow_one_registry():
    registry = Registry("v1")
    replicas = [parts_with(registry, "v1", "v2") for _ in range(2)]
    async with (
        asyncio.timeout(10),
        replicas[0].app() as one,
        replicas[1].app() as other,
        httpx.AsyncClient(transport=InTurn(one, other), base_url="http://localhost") as client,
    ):
        assert [await policy_of(client) for _ in range(4)] == ["v1"] * 4
        registry.folder = "v2"
        while not all(parts.proxies["v1"].closed for parts in replicas):
            assert await policy_of(client) in {"v1", "v2"}, "meanwhile no request fails"
        assert [await policy_of(client) for _ in range(4)] == ["v2"] * 4
    assert all(parts.proxies[policy].requests for parts in replicas for policy in ("v1", "v2")), "one was never asked"


async def test_a_swap_leaves_no_memory_behind(tmp_path):
    for seed in (1, 2):
        make_tiny(tmp_path / f"v{seed}", seed=seed, vocab_size=1 << 18)

    def open(name: str) -> Opened:
        folder = tmp_path / name.partition("@")[2] if name != "standard" else tmp_path / "v1"
        engine = TransformersEngine(folder, dtype="float32", threads=1)
        backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever([]))
        return Opened(build("direct"), backends, folder.name, engine.close)

    def taken() -> int:
        return psutil.Process().memory_info().rss >> 20

    registry, swapped, held = Registry("v1"), [], []
    async with Models(("c3po@champion",), open, registry, poll_s=0.05, report=swapped.append) as served:
        assert served.version("c3po@champion") == "v1"
        give_back()
        before = taken()
        for count, folder in enumerate(("v2", "v1", "v2", "v1", "v2"), start=2):
            registry.folder = folder
            await eventually(lambda count=count: len(swapped) == count and len(served._tasks) == 1)
            assert served.version("c3po@champion") == folder
            after = taken()  # the old one has been let go
            give_back()
            held.append(after - taken())
        grown = taken() - before
    assert min(held) < 8, f"{held} MiB are held though they are free: each time 16 or more where none are given back"
    assert grown < 32, f"{grown} MiB: five policies that are not let go take some 53"


async def test_without_a_champion_standard_rag_answers_until_there_is_one():
    registry = Registry(None)
    parts = parts_with(registry, "v1")
    async with parts.client() as client:
        body = (await ask(client, model="c3po@champion")).json()
        assert body["dragoman"]["degraded"] == {"system": "standard", "reason": "unavailable"}
        assert (await client.get("/readyz")).json()["models"]["c3po@champion"] is None
        registry.folder = "v1"
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="swapped") == 1)
        assert await policy_of(client) == "v1"


async def test_a_champion_that_cannot_be_opened_leaves_the_old_one(caplog):
    registry = Registry("v1")
    parts = parts_with(registry, "v1")
    async with parts.client() as client:
        registry.folder = "broken"
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="failed") == 1)
        await asyncio.sleep(0.05)  # some polls more
        assert await policy_of(client) == "v1"
        assert "broken cannot be served" in caplog.text
    assert parts.metric("dragoman_champion_changes_total", outcome="failed") == 1, "it is tried at every poll"
    assert parts.proxies["v1"].closed == 1


async def test_the_champion_is_followed_on_after_any_failure(monkeypatch):
    registry = Registry("v1")
    parts = parts_with(registry, "v1", "v2", "v3")
    opened = parts.open

    def open(name):
        if name == "c3po@v2":
            raise RuntimeError("nothing foresees this")
        return opened(name)

    parts.open = open
    monkeypatch.setattr(models, "RETRY_S", 0.01)
    async with parts.client() as client:
        registry.folder = "v2"
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="failed") >= 1)
        registry.folder = "v3"
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="swapped") == 2)
        assert await policy_of(client) == "v3"


async def test_equal_weights_that_were_trained_with_other_settings_have_not_been_champion():
    async def close() -> None:
        pass

    def open(name: str) -> Opened:
        backends = Backends(llm=Model(searching), proxy=Model(searching), retriever=ListRetriever([]))
        return Opened(build("direct"), backends, "one id", close, name.partition("@")[2] or None)

    name, others = "c3po@champion", ("c3po@/kept/a", "c3po@/kept/b", "c3po")
    async with Models((name,), open, Registry("/kept/a"), beside=others) as served:
        assert [served.has_been(name, other) for other in others] == [True, False, False]


def test_a_version_is_opened_with_the_folder_by_which_the_registry_names_a_champion(tmp_path, empty_store, tiny_model):
    shutil.copytree(empty_store, tmp_path / "mlruns")
    versions = Versions(tmp_path / "mlruns", tmp_path / "results")
    versions.promote(versions.register(publish(tiny_model, tmp_path / "results/rl", {"stage": "rl"})), None)
    params = Params(llm=EngineParams(engine="transformers", model=str(tiny_model)))
    params = params.model_copy(update={"proxy": params.llm})
    folder = RegistryChampion(versions).current()
    for name in ("c3po@v1", f"c3po@{folder}"):
        opened = opener(params, ListRetriever([]), versions)(name)
        asyncio.run(opened.close())
        assert opened.folder == folder


def test_a_system_that_needs_more_than_a_questions_text_is_refused():
    params = Params(systems={"mujica": {"environment": "graph", "candidates": "gold"}})
    with pytest.raises(UserError, match="topic"):
        opener(params, ListRetriever([]))("mujica@oracle")


def test_a_policy_that_cannot_be_opened_holds_no_engine(tmp_path):
    """The frozen LLM is opened before it, and was never let go of: once for each try, every 30 s."""
    llm = EngineParams(engine="openai", model="m", urls=("http://127.0.0.1:9/v1",), revision="none")
    params = Params(llm=llm, proxy=EngineParams(engine="transformers", model=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="no model there"):
        opener(params, ListRetriever([]))("c3po")
    assert len(POOL) == 0


async def test_a_registry_that_is_down_or_empty_leaves_the_champion(caplog):
    registry = Registry("v1")
    parts = parts_with(registry, "v1")
    async with parts.client() as client:
        registry.folder = ConnectionError("no route to the registry")
        await eventually(lambda: "no route to the registry" in caplog.text)
        assert await policy_of(client) == "v1"
        registry.folder = None
        await asyncio.sleep(0.03)
        assert await policy_of(client) == "v1"


async def test_all_that_is_open_is_closed_at_the_end():
    parts = parts_with(Registry("v1"), "v1", "")
    parts.models = ("c3po@champion", "c3po", "standard")
    async with parts.client():
        pass
    assert [proxy.closed for proxy in parts.proxies.values()] == [1, 1]


def test_a_stage_can_be_the_champion(tmp_path):
    champion = StageChampion("rl", tmp_path)
    assert champion.current() is None
    for version in ("a", "b"):
        folder = tmp_path / "rl" / "policies" / version
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (tmp_path / "rl" / "policy.json").write_text(json.dumps({"version": version, "folder": f"policies/{version}"}))
        assert champion.current() == str(folder)


async def test_a_registry_that_does_not_answer_is_asked_again_later():
    asked = []

    class Lost(Registry):
        def current(self):
            asked.append(1)
            return super().current()

    registry = Lost("v1")
    parts = parts_with(registry, "v1")
    async with parts.client() as client:
        registry.folder = OSError("gone")
        await eventually(lambda: parts.metric("dragoman_champion_changes_total", outcome="failed") == 1)
        before = len(asked)
        await asyncio.sleep(0.1)  # ten polls
        assert len(asked) == before
        assert await policy_of(client) == "v1"

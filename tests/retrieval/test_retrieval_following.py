"""A server of an index that is built again, without a restart of anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from search_stubs import EngineStub

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval import Hit, IndexParams, Retriever, build_index, open_retriever
from dragoman.retrieval import following as module
from dragoman.retrieval.base import changes_unseen
from dragoman.retrieval.following import FollowingRetriever
from dragoman.retrieval.health import probe
from dragoman.retrieval.http.foreign import ForeignRetriever
from dragoman.retrieval.http.settings import ServerParams
from dragoman.retrieval.manifest import Manifest
from dragoman.retrieval.methods.server import ServerRetriever
from dragoman.retrieval.rerank import RerankedRetriever, RerankParams


def build(folder: Path, *towns: str) -> None:
    passages = [Passage(town, town, f"{town} has a river.") for town in towns]
    build_index(passages, folder, IndexParams(method="graph"))


async def found(retriever: FollowingRetriever, query: str = "Arlen") -> list[str]:
    ((hits),) = await retriever.search([query], 5)
    return [hit.passage.id for hit in hits]


async def until_found(retriever: FollowingRetriever, query: str, expected: list[str]) -> None:
    async with asyncio.timeout(300):
        while await found(retriever, query) != expected:
            await asyncio.sleep(0.01)


async def threads_ended() -> None:
    """What still opens an index in a thread is to find its server there, or it would ask again for seconds."""
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.0)
    build(tmp_path / "index", "Arlen")
    return tmp_path / "index"


async def test_an_index_that_is_built_again_is_searched_and_nothing_old_remembered(folder: Path) -> None:
    retriever = FollowingRetriever(str(folder))
    first = retriever.fingerprint
    assert await found(retriever) == ["Arlen"] and await found(retriever, "Brisa") == []
    build(folder, "Arlen", "Brisa")
    await until_found(retriever, "Brisa", ["Brisa"])
    assert retriever.fingerprint != first and retriever.passage_count == 2 and retriever.misses >= 3
    await retriever.close()


class Counted:
    """Opens indexes, and knows those that are still open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.closed = 0, 0
        monkeypatch.setattr(module, "open_retriever", self.open)

    def open(self, *arguments: Any, **more: Any) -> Retriever:
        self.opened += 1
        retriever = open_retriever(*arguments, **more)
        close = retriever.close

        async def closing() -> None:
            self.closed += 1
            await close()

        retriever.close = closing  # type: ignore[method-assign]
        return retriever


async def looked(retriever: FollowingRetriever, times: int = 5) -> None:
    """So many searches, each of which has had the folder looked at."""
    for _ in range(times):
        await found(retriever)
        await asyncio.sleep(0.02)


async def test_an_index_whose_fingerprint_is_not_its_manifests_is_opened_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    retriever = FollowingRetriever(str(folder))
    assert retriever.fingerprint != Manifest.read(folder).fingerprint  # as of hybrid, graph and ideal
    await looked(retriever)
    assert counted.opened == 1
    await retriever.close()
    assert counted.closed == 1


async def test_an_equal_index_in_its_place_is_opened_once_and_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    retriever = FollowingRetriever(str(folder))
    first = retriever.fingerprint
    build(folder, "Arlen")
    await looked(retriever)
    async with asyncio.timeout(300):
        while counted.closed == 0:
            await looked(retriever, 1)
    await looked(retriever)
    assert (counted.opened, counted.closed, retriever.fingerprint) == (2, 1, first)
    await retriever.close()


async def test_an_index_that_cannot_be_opened_leaves_the_old_one(folder: Path) -> None:
    retriever = FollowingRetriever(str(folder))
    (folder / "manifest.json").write_text("{")
    for _ in range(3):
        assert await found(retriever) == ["Arlen"]
        await asyncio.sleep(0.02)
    build(folder.with_name("other"), "Brisa")
    (folder / "manifest.json").unlink()
    folder.rename(folder.with_name("away"))
    folder.with_name("other").rename(folder)
    await until_found(retriever, "Brisa", ["Brisa"])
    await retriever.close()
    with pytest.raises(UserError, match="not an index"):
        FollowingRetriever(str(folder.with_name("nothing")))


class Down:
    """A server that has gone: every search fails, and opening it again hangs until it is let go on."""

    fingerprint = "gone"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.go_on = 0, threading.Event()
        monkeypatch.setattr(module, "open_retriever", self.open)

    def open(self, *arguments: Any, **more: Any) -> Down:
        self.opened += 1
        if self.opened > 1:
            self.go_on.wait(300)
            raise UserError("no retriever to use: no answer")
        return self

    async def search(self, *arguments: Any) -> list[list[Hit]]:
        raise RetrieverFault("no answer")

    async def close(self) -> None: ...


async def test_a_server_that_is_gone_is_opened_again_by_one_for_all_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Down(monkeypatch)
    retriever = FollowingRetriever("http://localhost:1")
    searches = [asyncio.create_task(found(retriever, f"query {n}")) for n in range(20)]
    await asyncio.sleep(0.1)
    for given_up in searches[:10]:  # their time is over
        given_up.cancel()
    await asyncio.wait(searches[:10])
    searches += [asyncio.create_task(found(retriever, f"later {n}")) for n in range(5)]
    async with asyncio.timeout(300):
        while down.opened < 2:  # in a thread
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert down.opened == 2
    down.go_on.set()
    ends = await asyncio.gather(*searches[10:], return_exceptions=True)
    assert down.opened == 2 and all(isinstance(end, RetrieverFault) for end in ends)
    await retriever.close()


async def test_no_search_fails_while_a_server_changes_over(folder: Path, serve: Callable) -> None:
    with serve(FollowingRetriever(str(folder))) as url:
        retriever = await asyncio.to_thread(FollowingRetriever, url)
        assert await found(retriever) == ["Arlen"]
        build(folder, "Arlen", "Brisa")
        await until_found(retriever, "Brisa", ["Brisa"])  # a fault of any of these searches would fail the test
        await retriever.close()


async def test_the_index_behind_a_folder_that_names_a_server_is_followed_without_a_word(
    folder: Path, serve: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    named, towns = folder.with_name("named"), [Passage("Arlen", "Arlen", "Arlen has a river.")]
    with serve(FollowingRetriever(str(folder))) as url:
        await asyncio.to_thread(build_index, towns, named, IndexParams(method="server", url=url))
        retriever = await asyncio.to_thread(FollowingRetriever, str(named), IndexParams(method="graph"))
        first = retriever.fingerprint
        build(folder, "Arlen", "Brisa")
        await until_found(retriever, "Brisa", ["Brisa"])
        assert retriever.fingerprint != first
        await looked(retriever)
        await retriever.close()
        await threads_ended()
    assert caplog.text.count("searched as it was built, by method server") == 1


async def test_what_is_probed_alone_changes_over_with_its_server(folder: Path, serve: Callable) -> None:
    with serve(FollowingRetriever(str(folder))) as url:
        retriever = await asyncio.to_thread(FollowingRetriever, url)
        build(folder, "Arlen", "Brisa")
        async with asyncio.timeout(300):
            while retriever.passage_count != 2:
                with suppress(RetrieverFault):  # it is behind, for a moment
                    await probe(retriever)
                await asyncio.sleep(0.01)
        await probe(retriever)
        assert await found(retriever, "Brisa") == ["Brisa"]
        await retriever.close()
        await threads_ended()


async def test_a_server_that_is_asked_for_its_health_alone_changes_over(folder: Path, serve: Callable) -> None:
    with serve(FollowingRetriever(str(folder))) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            first = (await client.get("/healthz")).json()["fingerprint"]
            build(folder, "Arlen", "Brisa")
            async with asyncio.timeout(300):
                while (now := (await client.get("/healthz")).json())["fingerprint"] == first:
                    await asyncio.sleep(0.01)
    assert now["passages"] == 2


async def searches_after_a_while(retriever: FollowingRetriever) -> int:
    """How often an index is searched by one query that comes twice."""
    await found(retriever)
    await asyncio.sleep(0.05)
    await found(retriever)
    await retriever.close()
    return retriever.misses


@pytest.mark.parametrize(("revision", "searches"), [("", 2), ("may", 1)])
async def test_a_server_that_does_not_say_when_it_changes_is_asked_anew_unless_a_revision_says_it(
    revision: str, searches: int, engines: tuple[EngineStub, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSEEN_S", 0.01)
    params = IndexParams(server=ServerParams(revision=revision))
    assert await searches_after_a_while(FollowingRetriever(f"searxng+{engines[1]}", params)) == searches


async def test_what_an_index_folder_has_found_is_remembered_while_it_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSEEN_S", 0.01)
    assert await searches_after_a_while(FollowingRetriever(str(folder))) == 1


def test_what_stands_before_such_a_server_changes_unseen_too() -> None:
    web, named = (ForeignRetriever("searxng", "http://a", ServerParams(revision=name)) for name in ("", "may"))
    for inner in (web, named):
        fronts = ServerRetriever(inner, "f"), RerankedRetriever(inner, None, RerankParams(), "")
        assert [changes_unseen(front) for front in fronts] == [inner is web] * 2

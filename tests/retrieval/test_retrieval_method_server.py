"""A search server in the place of an index: what its building checks, what names it, and the pipeline over it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import run
from fastapi import FastAPI
from listening import listening
from tiny import make_tiny
from towns import make_towns, river_llm

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus import load_corpus
from dragoman.pipeline import index
from dragoman.registry.policy import publish
from dragoman.retrieval import Hit, IndexParams, Retriever, build_index, open_retriever
from dragoman.retrieval.http.server import create_app
from dragoman.retrieval.http.settings import ServerParams
from dragoman.retrieval.manifest import Manifest
from dragoman.rollout.store import read_episodes

Serve = Callable[[Retriever], AbstractContextManager[str]]
Listed = Callable[..., Retriever]


def passages(ids: str) -> list[Passage]:
    """Those that `listed` finds."""
    return [Passage(id, f"Title {id}", f"Text of {id}.") for id in ids]


def at(url: str, **server: object) -> IndexParams:
    return IndexParams(method="server", url=url, server=ServerParams(retries=0, **server))


def fingerprint(folder: Path, params: IndexParams | None = None) -> str:
    retriever = open_retriever(folder, params)
    asyncio.run(retriever.close())
    return retriever.fingerprint


def test_the_folder_names_the_server_and_the_corpus_and_holds_no_key_and_no_passage(
    tmp_path: Path, listed: Listed, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_RETRIEVER_KEY", "hush")
    done = []
    with serve(listed("abc")) as url:
        params = at(f"{url}/", revision="may")
        built = build_index(passages("abc"), tmp_path / "x", params, progress=lambda *steps: done.append(steps))
        local = build_index(passages("abc"), tmp_path / "local")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["manifest.json"]
    assert built == Manifest.read(tmp_path / "x", "server")
    assert built.settings == {"url": url, "revision": "may", "server": "list"}
    assert (built.corpus_sha256, built.passages) == (local.corpus_sha256, 3)
    assert "hush" not in (tmp_path / "x" / "manifest.json").read_text()
    assert done == [(3, 3)]


class Lacking:
    """A retriever that says which ids it lacks, notes how many it is asked for, and counts its queries."""

    def __init__(self, inner: Retriever, ids: Sequence[str]) -> None:
        self.inner, self.fingerprint, self.ids = inner, inner.fingerprint, set(ids)
        self.asked: list[int] = []
        self.queries = 0

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        self.queries += len(queries)
        return await self.inner.search(queries, k, page)

    async def missing(self, ids: Sequence[str]) -> list[str]:
        self.asked.append(len(ids))
        return [id for id in ids if id in self.ids]

    async def close(self) -> None: ...


def test_a_server_that_lacks_one_id_is_refused_by_that_and_by_one_that_came(
    tmp_path: Path, listed: Listed, serve: Serve
) -> None:
    told = r"retriever at http.* does not know passage 'd' \('Title d'\) .*: 'a' \('Title a'\) came first"
    with serve(Lacking(listed("abc"), ["d"])) as url, pytest.raises(UserError, match=told):
        build_index(passages("abcd"), tmp_path / "x", at(url))
    assert list(tmp_path.iterdir()) == []


def test_ids_are_looked_up_a_thousand_at_a_time(tmp_path: Path, listed: Listed, serve: Serve) -> None:
    many = [Passage(f"p{n}", "", f"Text of {n}.") for n in range(1001)]
    retriever = Lacking(listed("a"), ["p1000"])
    with serve(retriever) as url, pytest.raises(UserError, match="'p1000'"):
        build_index(many, tmp_path / "x", at(url))
    assert retriever.asked == [1000, 1]


def test_a_server_that_cannot_say_must_find_half_of_a_sample_by_id(tmp_path: Path, bm25: Retriever) -> None:
    """Servers of others have no route for it."""
    known = asyncio.run(bm25.search(["market"], 20))[0]
    own = [hit.passage for hit in known]
    renamed = [replace(passage, id=f"row-{n}") for n, passage in enumerate(own)]
    with listening(create_app(bm25)) as url:
        address = at(f"search-r1+{url}")
        assert build_index([*own[:10], *renamed[10:]], tmp_path / "half", address).passages == 20
        with pytest.raises(UserError, match=f"'row-0' .* by its id: its text came back as '{own[0].id}'"):
            build_index([*renamed[:11], *own[11:]], tmp_path / "less", address)


def test_an_address_that_is_missing_wrong_or_of_nobody_is_a_sentence_and_leaves_what_was_there(
    tmp_path: Path, listed: Listed, serve: Serve
) -> None:
    with serve(listed("a")) as url:
        before = build_index(passages("a"), tmp_path / "x", at(url))
    for address, told in (
        ("", "index.url is not set: .*such as http://localhost:9000"),
        ("localhost:9000", "not the address of a retriever: 'localhost:9000' is not an http"),
        ("https://me:hush@host", "not the address of a retriever: the URL of host holds a user"),
        ("google+http://host", "'google' is no kind of retrieval server"),
        (url, f"no retriever to use: {url}/healthz: no answer in 1 attempts"),
        (f"c3po+{url}", f"index.url: a retrieval server of C-3PO at {url} cannot search: {url}/search: no answer"),
    ):
        with pytest.raises(UserError, match=told) as caught:
            build_index(passages("a"), tmp_path / "x", at(address))
        assert "hush" not in str(caught.value)
    assert Manifest.read(tmp_path / "x") == before and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match=f"no retriever to use: {url}/healthz: no answer"):
        open_retriever(tmp_path / "x", at(url))


def test_address_corpus_revision_and_what_the_server_says_change_the_fingerprint(
    tmp_path: Path, listed: Listed, serve: Serve
) -> None:
    retriever = listed("ab")
    with serve(retriever) as url, serve(retriever) as elsewhere:

        def built(address: str, ids: str = "ab", **server: object) -> str:
            build_index(passages(ids), tmp_path / "x", at(address, **server))
            return fingerprint(tmp_path / "x")

        first = built(url)
        found = [first, built(elsewhere), built(url, "a"), built(url, revision="may"), built(f"c3po+{url}")]
        assert built(url) == built(f"{url}/") == first == Manifest.read(tmp_path / "x").fingerprint
        found.append(fingerprint(tmp_path / "x", at(url, revision="june")))
        retriever.fingerprint = "another"
        found.append(fingerprint(tmp_path / "x"))  # it is not checked again
        assert built(url) == found[-1]
    assert len(set(found)) == len(found) and all(name.startswith("server-") for name in found)


def test_the_folder_is_searched_whatever_the_settings_name_with_their_way_of_asking(
    tmp_path: Path, listed: Listed, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(listed("a")) as url:
        build_index(passages("a"), tmp_path / "x", at(url))
        for params in (at(url), at("http://nobody"), IndexParams(server=ServerParams(at_once=3))):
            retriever = open_retriever(tmp_path / "x", params)
            [[hit]] = asyncio.run(retriever.search(["x"], 1))
            assert hit.passage.id == "a" and repr(retriever) == f"retriever at {url}"
    assert retriever._retriever._calls._patience.at_once == 3
    told = [record.getMessage() for record in caplog.records if record.name == "dragoman.retrieval"]
    assert len(told) == 2 and f"with url {url}, while index.url is http://nobody; to change that" in told[0]


class OpenSearch:
    """As much of it as the page asks: `from`, `size`, and documents in `_source`. One has no title."""

    def __init__(self, retriever: Retriever) -> None:
        self.app, self.retriever, self.asked = FastAPI(), retriever, list[int]()
        self.app.post("/passages/_search")(self.search)

    async def search(self, body: dict[str, Any], preference: str) -> dict[str, Any]:
        first, size = body["from"], body["size"]
        assert body["_source"] == ["title", "text"] and preference and first + size <= 10_000
        self.asked.append(size)
        [hits] = await self.retriever.search([body["query"]["multi_match"]["query"]], first + size)
        return {"hits": {"hits": list(map(self.row, hits[first:]))}}

    def row(self, hit: Hit) -> dict[str, Any]:
        source = {"title": hit.passage.title or None, "text": hit.passage.text}
        return {"_index": "passages", "_id": hit.passage.id, "_score": hit.score, "_source": source}


async def test_the_adapter_of_the_page_makes_a_search_engine_a_retriever(
    tmp_path: Path, bm25: Retriever, corpus: list[Passage], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "retrieval.md").read_text(encoding="utf-8")
    adapter, search = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    engine = OpenSearch(bm25)
    with listening(engine.app) as there:
        my_search = ModuleType("my_search")
        exec(search.replace("http://localhost:9200", there), vars(my_search))
        monkeypatch.setitem(sys.modules, "my_search", my_search)
        my_server = ModuleType("my_server")
        monkeypatch.setitem(sys.modules, "my_server", my_server)
        exec(adapter, vars(my_server))
        with listening(my_server.app) as url:
            await asyncio.to_thread(build_index, corpus, tmp_path / "x", at(url))
            retriever = await asyncio.to_thread(open_retriever, tmp_path / "x")
            [everything] = await retriever.search(["market"], 9)
            pages = [await retriever.search(["market"], 3, page) for page in range(3)]
            [[untitled]] = await retriever.search(["A harbour without a name lies east of the lighthouse"], 1)
            assert await retriever.search(["market"], 100, 100) == [[]]
            await retriever.close()
    assert everything == [hit for [hits] in pages for hit in hits] and len(everything) == 9
    assert everything == (await bm25.search(["market"], 9))[0]
    assert untitled.passage.title == "" and {3, 9} <= {*engine.asked}


def test_a_folder_that_is_there_is_checked_again_by_the_same_questions(
    tmp_path: Path, listed: Listed, serve: Serve
) -> None:
    """A local index would be left as it is."""
    retriever = Lacking(listed("abc"), [])
    with serve(retriever) as url:
        index.build(passages("abc"), tmp_path / "x", at(url))
        before = retriever.queries
        retriever.fingerprint = "another"
        manifest = index.build(passages("abc"), tmp_path / "x", at(url))
        assert manifest == Manifest.read(tmp_path / "x") and manifest.settings["server"] == "another"
        assert retriever.queries == 2 * before
        retriever.ids = {"b"}
        with pytest.raises(UserError, match="does not know passage 'b'"):
            index.build(passages("abc"), tmp_path / "x", at(url))


@pytest.mark.slow
def test_the_pipeline_and_the_gate_search_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, tiny_model: Path, empty_store: Path, serve: Serve
) -> None:
    monkeypatch.chdir(tmp_path)
    searched = []

    def dragoman(*arguments: str, code: int = 0) -> str:
        before = theirs.queries
        ended, out, err = run(capsys, *arguments)
        assert ended == code, err
        searched.append(theirs.queries - before)
        return out

    with river_llm() as llm:
        make_towns(tmp_path, llm, tiny_model)
        shutil.copytree(empty_store, "mlruns")
        build_index(load_corpus("data/towns/corpus.jsonl"), "theirs")
        theirs = Lacking(open_retriever("theirs"), [])
        with serve(theirs) as url:
            with Path("params.yaml").open("a") as params:
                params.write(f"index: {{method: server, url: '{url}'}}\npolicies: [sft]\n")
            assert "data/index/towns: 18 passages, server" in dragoman("index", "--dataset", "towns")
            dragoman("seeds", "--no-track")
            names = "standard,maps@oracle"
            dragoman("evaluate", "--dataset", "towns", "--systems", names, "--out", "results/it", "--no-track")
            make_tiny(tmp_path / "made", seed=1)
            publish(tmp_path / "made", Path("results/sft"), {"stage": "sft", "system": "maps", "base": "tiny"})
            assert "| maps@v1 |" in dragoman("promote", code=3)  # it is judged, and knows nothing
            own = fingerprint(Path("data/index/towns"))
    assert len(searched) == 4 and all(searched)
    assert [path.name for path in Path("data/index/towns").iterdir()] == ["manifest.json"]
    for folder in ("seeds", "it/episodes/maps@oracle"):
        episodes = read_episodes(Path("results") / folder / "episodes.jsonl")
        assert {episode.config["retriever"] for episode in episodes} == {own}
    assert json.loads(Path("results/promote/decision.json").read_text())["retriever"] == own
    scores = json.loads(Path("results/it/metrics.json").read_text())["systems"]
    assert scores["maps@oracle"]["recall"]["mean"] == scores["maps@oracle"]["cover_em"]["mean"] == 1.0

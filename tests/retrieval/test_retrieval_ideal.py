"""What a question finds under ideal retrieval; what everybody finds is in the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run
from fakes import ScriptedEngine

from dragoman.core.errors import UserError
from dragoman.core.types import Passage, Question
from dragoman.retrieval import IndexParams, Retriever, build_index, open_retriever
from dragoman.retrieval.cache import CachedRetriever
from dragoman.retrieval.methods.ideal import open_index
from dragoman.rollout.backends import Backends
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason


@pytest.fixture(scope="module")
def folder(corpus: list[Passage], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ideal") / "index"
    build_index(corpus, folder, IndexParams(method="ideal"))
    return folder


@pytest.fixture(scope="module")
def ideal(folder: Path) -> Iterator[Retriever]:
    retriever = open_retriever(folder)
    yield retriever
    asyncio.run(retriever.close())


GOLD = ("brisa-salt", "arlen-glass", "tokyo")


def about(*ids: str) -> Question:
    return Question("q", "Where is salt sold?", ("Brisa",), supporting_ids=ids)


async def found(retriever: Retriever, query: str, k: int = 10, page: int = 0) -> list[str]:
    [hits] = await retriever.search([query], k, page)
    return [hit.passage.id for hit in hits]


async def test_only_gold_passages_are_found_in_the_order_of_the_search(ideal: Retriever) -> None:
    own = ideal.of(about(*GOLD))
    assert await found(own, "glass market of Arlen") == ["arlen-glass", "brisa-salt", "tokyo"]
    assert await found(own, "the salt of Brisa") == ["brisa-salt", "arlen-glass", "tokyo"]
    assert await found(own, "xyzzy") == list(GOLD)  # found by nothing, and yet there
    assert await found(ideal, "the salt of Corvo", 1) == ["corvo-salt"]


async def test_of_gold_that_was_cut_all_chunks_are_found(tmp_path: Path) -> None:
    passages = [
        Passage("salt#0", "Salt", "salt of Brisa"),
        Passage("salt#1", "Salt", "more of it"),
        Passage("x", "", "x"),
    ]
    build_index(passages, tmp_path / "index", IndexParams(method="ideal"))
    retriever = open_retriever(tmp_path / "index")
    assert await found(retriever.of(about("salt")), "salt") == ["salt#0", "salt#1"]
    assert await retriever.missing(["salt", "salt#1", "y"]) == ["y"]
    await retriever.close()


async def test_pages_and_scores_are_those_of_any_retriever(ideal: Retriever) -> None:
    own = ideal.of(about(*GOLD, "tokyo"))
    pages = [await found(own, "glass", 2, page) for page in range(3)]
    assert [len(page) for page in pages] == [2, 1, 0]
    assert sorted(id for page in pages for id in page) == sorted(GOLD)
    [hits] = await own.search(["glass"], 3)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert own.fingerprint == ideal.fingerprint
    with pytest.raises(UserError, match="k is 0"):
        await own.search(["glass"], 0)


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ((), "question q: ideal retrieval needs its supporting_ids"),
        (("nowhere",), "its gold passage 'nowhere' is not in"),
    ],
)
def test_a_question_without_known_gold_is_refused(ideal: Retriever, ids: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        ideal.of(about(*ids))


def test_another_index_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="a bm25 index, not a"):
        open_index(folder / "bm25")


def test_a_server_does_not_know_the_question(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve-retriever", "--index", str(folder))
    assert code == 2 and "depends on the question" in err


def backends(retriever: Retriever) -> Backends:
    engine = ScriptedEngine(lambda prompt, rng: "Brisa")
    return Backends(llm=engine, proxy=engine, retriever=retriever)


@pytest.mark.parametrize("cached", [False, True])
async def test_a_system_finds_what_its_question_may(ideal: Retriever, folder: Path, cached: bool) -> None:
    retriever = CachedRetriever(ideal) if cached else ideal
    episode = await Tree(about(*GOLD), build("standard", {"k": 5}), backends(retriever)).grow()
    assert sorted(episode.trajectories[0].passages) == sorted(GOLD)
    assert episode.trajectories[0].stop is StopReason.ANSWERED
    everything = open_retriever(folder / "bm25")
    retriever = CachedRetriever(everything) if cached else everything
    episode = await Tree(about(*GOLD), build("standard", {"k": 5}), backends(retriever)).grow()
    assert len(episode.trajectories[0].passages) == 5
    await retriever.close()


async def test_a_rollout_without_gold_stops_with_a_sentence(ideal: Retriever) -> None:
    with pytest.raises(UserError, match="supporting_ids"):
        await Tree(about(), build("standard"), backends(ideal)).grow()

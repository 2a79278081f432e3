"""BM25 in real Lucene: what its settings do, ties, and damaged folders."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit
from dragoman.retrieval.methods.bm25 import BM25Retriever, Settings, build


def search(folder: Path, query: str, k: int = 10) -> list[Hit]:
    async def run() -> list[Hit]:
        retriever = BM25Retriever(folder)
        [hits] = await retriever.search([query], k)
        await retriever.close()
        return hits

    return asyncio.run(run())


def test_scores_are_those_of_the_formula(tmp_path: Path) -> None:
    passages = [
        Passage("a", "", "zinc zinc iron"),
        Passage("b", "", "iron gold tin"),
        Passage("c", "", "gold lead tin"),
    ]
    build(passages, tmp_path / "index", Settings(k1=1.2, b=0.75))
    [hit] = search(tmp_path / "index", "zinc")
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))  # one of three passages has the word
    expected = idf * 2 / (2 + 1.2)  # twice, in a passage of average length
    assert hit.passage.id == "a"
    assert hit.score == pytest.approx(expected, abs=1e-3)


def test_settings_change_the_ranking(tmp_path: Path) -> None:
    passages = [
        Passage("long", "", "zinc zinc zinc " + "filler stuffing padding " * 20),
        Passage("short", "", "zinc ore"),
        Passage("other", "", "iron ore"),
    ]
    build(passages, tmp_path / "flat", Settings(b=0.0))
    build(passages, tmp_path / "fair", Settings(b=1.0))
    assert [hit.passage.id for hit in search(tmp_path / "flat", "zinc")] == ["long", "short"]
    assert [hit.passage.id for hit in search(tmp_path / "fair", "zinc")] == ["short", "long"]


def test_titles_are_searched_and_words_stemmed(tmp_path: Path) -> None:
    build([Passage("a", "Volcanoes", "They erupt."), Passage("b", "Lakes", "They freeze.")], tmp_path / "index")
    assert [hit.passage.id for hit in search(tmp_path / "index", "the eruption of a volcano")] == ["a"]


def test_equal_scores_stand_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    ids = [f"p{(n * 37) % 50}" for n in range(50)]  # neither sorted nor in order of insertion by thread
    build([Passage(id, "", "the very same metal") for id in ids], tmp_path / "index", Settings(threads=4))
    hits = search(tmp_path / "index", "metal", k=50)
    assert [hit.passage.id for hit in hits] == ids
    assert [hit.passage.id for hit in search(tmp_path / "index", "metal", k=7)] == ids[:7]


def test_refuses_a_damaged_index(indexes: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(indexes["bm25"], tmp_path / "index")
    shutil.rmtree(tmp_path / "index" / "lucene")
    with pytest.raises(UserError, match=r"Lucene cannot open the index .*build it again"):
        BM25Retriever(tmp_path / "index")
    with pytest.raises(UserError, match="a dense index, not a bm25 one"):
        BM25Retriever(indexes["dense"])


def test_refuses_parts_of_two_indexes(indexes: dict[str, Path], tmp_path: Path) -> None:
    build([Passage("a", "", "one passage")], tmp_path / "index")
    shutil.rmtree(tmp_path / "index" / "lucene")
    shutil.copytree(indexes["bm25"] / "lucene", tmp_path / "index" / "lucene")
    with pytest.raises(UserError, match="do not fit together"):
        BM25Retriever(tmp_path / "index")


async def test_closing_needs_no_search_before(indexes: dict[str, Path]) -> None:
    retriever = BM25Retriever(indexes["bm25"])
    await retriever.close()
    assert repr(retriever) == f"BM25 index {indexes['bm25']}"


def test_rm3_finds_what_shares_words_with_the_first_passages_alone(tmp_path: Path) -> None:
    passages = [
        Passage("named", "", "zinc smelter furnace slag"),
        Passage("related", "", "furnace slag heap"),
        *(Passage(f"other-{n}", "", f"cheese and wine {n}") for n in range(30)),  # a word of every tenth is not taken
    ]
    build(passages, tmp_path / "plain")
    widened = build(passages, tmp_path / "rm3", Settings(rm3=True))
    assert [hit.passage.id for hit in search(tmp_path / "plain", "zinc")] == ["named"]
    assert [hit.passage.id for hit in search(tmp_path / "rm3", "zinc")] == ["named", "related"]
    assert [hit.passage.id for hit in search(tmp_path / "rm3", "zinc", k=1)] == ["named"]
    assert widened.fingerprint.startswith("bm25+rm3-")

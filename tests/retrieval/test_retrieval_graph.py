"""What a graph finds before its search does; the rest is in the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.corpus.triples import entity_passages
from dragoman.retrieval import IndexParams, Retriever, build_index, open_retriever
from dragoman.retrieval.methods.graph import open_index

TRIPLES = [
    ("Guinea", "capital", "Conakry"),
    ("Equatorial Guinea", "capital", "Malabo"),
    ("Equatorial Guinea", "official language", "Spanish"),
    ("Malabo", "country", "Equatorial Guinea"),
    ("Conakry", "country", "Guinea"),
    ("N'Djamena", "country", "Chad"),
    ("Georgia", "capital", "Tbilisi"),
    *((f"Town {n}", "country", "Guinea") for n in range(30)),
]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("graph") / "index"
    build_index(entity_passages(TRIPLES), folder, IndexParams(method="graph"))
    retriever = open_retriever(folder)
    yield retriever
    asyncio.run(retriever.close())


async def found(retriever: Retriever, query: str, k: int = 3) -> list[str]:
    [hits] = await retriever.search([query], k)
    return [hit.passage.id for hit in hits]


async def test_entities_that_are_named_come_first_in_the_order_of_the_query(atlas: Retriever) -> None:
    query = "Which is bigger, Town 7 or Guinea?"
    assert (await found(atlas, query))[:2] == ["Town 7", "Guinea"]
    [hits] = await atlas.search([query], 10)
    assert hits[0].score == hits[1].score > hits[2].score


async def test_the_longer_of_two_names_counts(atlas: Retriever) -> None:
    assert (await found(atlas, "Is Spanish spoken in Equatorial Guinea?"))[0] == "Equatorial Guinea"
    [hits] = await atlas.search(["Equatorial Guinea"], 2)
    assert hits[0].score > hits[1].score  # Guinea may be found, but was not named


@pytest.mark.parametrize("query", ["n'djamena", "N’DJAMENA?", "(N'Djamena)"])
async def test_case_and_punctuation_do_not_matter(atlas: Retriever, query: str) -> None:
    assert (await found(atlas, query, 1)) == ["N'Djamena"]


async def test_a_name_within_a_word_is_no_name(atlas: Retriever) -> None:
    assert await found(atlas, "Malaboo") == []


async def test_an_unknown_entity_is_searched_for(atlas: Retriever) -> None:
    assert (await found(atlas, "Who speaks Spanish?", 1)) == ["Equatorial Guinea"]
    assert await found(atlas, "Atlantis") == []


async def test_a_graph_without_entities_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the corpus is empty"):
        build_index(entity_passages([]), tmp_path / "index", IndexParams(method="graph"))
    assert list(tmp_path.iterdir()) == []


def test_another_index_is_refused(indexes: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="a bm25 index, not a graph one"):
        open_index(indexes["bm25"])

"""What a graph finds before its search does; the rest is in the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus.triple_passages import about, triple_passages
from dragoman.retrieval import IndexParams, Retriever, build_index, open_retriever
from dragoman.retrieval.methods import graph
from dragoman.retrieval.methods.graph import GraphRetriever, open_index

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
    build_index(triple_passages(TRIPLES), folder, IndexParams(method="graph"))
    retriever = open_retriever(folder)
    yield retriever
    asyncio.run(retriever.close())


async def found(retriever: Retriever, query: str, k: int = 3, page: int = 0) -> list[str]:
    [hits] = await retriever.search([query], k, page)
    return [f"{hit.passage.title}, {hit.passage.text}" for hit in hits]


async def test_entities_that_are_named_take_turns_in_the_order_of_the_query(atlas: Retriever) -> None:
    query = "Which is bigger, Town 7 or Guinea?"
    assert await found(atlas, query, 2) == ["Town 7, country: Guinea", "Guinea, capital: Conakry"]
    [hits] = await atlas.search([query], 60)
    named = [hit for hit in hits if hit.score == hits[0].score]
    assert len(named) == 32 and len(hits) > len(named)  # Town 7 has one triple and Guinea 32, one of them the same
    assert {hit.passage.title for hit in named[2:]} == {"Conakry", *(f"Town {n}" for n in range(30) if n != 7)}


async def test_the_longer_of_two_names_counts(atlas: Retriever) -> None:
    assert (await found(atlas, "Is Spanish spoken in Equatorial Guinea?", 1)) == [
        "Equatorial Guinea, official language: Spanish"
    ]
    [hits] = await atlas.search(["Equatorial Guinea"], 4)
    assert [hit.score == hits[0].score for hit in hits] == [True, True, True, False]  # Guinea was not named


@pytest.mark.parametrize("query", ["n'djamena", "N’DJAMENA?", "(N'Djamena)"])
async def test_case_and_punctuation_do_not_matter(atlas: Retriever, query: str) -> None:
    assert (await found(atlas, query, 1)) == ["N'Djamena, country: Chad"]
    assert (await found(atlas, about(query, ""), 9)) == ["N'Djamena, country: Chad"]


async def test_a_query_about_an_entity_finds_its_triples_alone_those_first_that_fit(atlas: Retriever) -> None:
    query = about("Equatorial Guinea", "Which language is spoken there, as in Guinea and in Town 7?")
    of_it = [
        "Equatorial Guinea, official language: Spanish",
        "Equatorial Guinea, capital: Malabo",
        "Malabo, country: Equatorial Guinea",
    ]
    assert await found(atlas, query, 9) == of_it
    assert await found(atlas, query, 2) + await found(atlas, query, 2, page=1) == of_it


async def test_of_an_entity_with_many_triples_no_more_are_read_than_are_found(
    atlas: GraphRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Counting:
        def __getitem__(self, row: int) -> Passage:
            read.append(row)
            return triples[row]

    triples = atlas._triples
    monkeypatch.setattr(atlas, "_triples", Counting())
    for query in (about("Guinea", "country"), "Which towns are in Guinea?"):
        first = await found(atlas, query, 3)
        assert len(read) == 3
        read.clear()
        assert (await found(atlas, query, 32))[:3] == first and len(read) == 32
        read.clear()


async def test_pages_beyond_the_depth_of_the_search_overlap_with_none_and_leave_nothing_out(
    atlas: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "DEPTH", 5)
    query = about("Guinea", "Is town 7 or town 23 or Conakry in this country?")
    paged = [hit for page in range(8) for hit in await found(atlas, query, 4, page)]
    assert len({*paged}) == 32 and await found(atlas, query, 99) == paged


async def test_what_an_entity_heads_comes_before_what_ends_in_it(atlas: Retriever) -> None:
    assert (await found(atlas, about("Guinea", "town"), 2))[0] == "Guinea, capital: Conakry"
    assert len(await found(atlas, about("Guinea", "town"), 99)) == 32


async def test_a_value_is_found_by_name_only_where_the_query_is_about_it(atlas: Retriever) -> None:
    assert await found(atlas, about("Tbilisi", "")) == ["Georgia, capital: Tbilisi"]
    [hits] = await atlas.search(["Tbilisi or Malabo"], 9)
    assert hits[0].passage.title == "Malabo" and "Tbilisi" in hits[-1].passage.text


@pytest.mark.parametrize("query", [about("Atlantis", "Which capital has Guinea?"), about("", "Guinea"), "\t"])
async def test_an_entity_that_is_not_in_the_graph_has_no_triples(atlas: Retriever, query: str) -> None:
    assert await found(atlas, query) == []


async def test_a_name_within_a_word_is_no_name(atlas: Retriever) -> None:
    assert await found(atlas, "Malaboo") == []


async def test_words_that_name_no_entity_are_searched_for(atlas: Retriever) -> None:
    assert (await found(atlas, "Who speaks Spanish?", 1)) == ["Equatorial Guinea, official language: Spanish"]
    assert await found(atlas, "Atlantis") == []


async def test_a_graph_without_triples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the corpus is empty"):
        build_index(triple_passages([]), tmp_path / "index", IndexParams(method="graph"))
    assert list(tmp_path.iterdir()) == []


def test_another_index_is_refused(indexes: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="a bm25 index, not a graph one"):
        open_index(indexes["bm25"])

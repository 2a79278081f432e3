"""What every retriever owes its callers, whatever is inside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.retrieval import Retriever, check_health
from dragoman.retrieval.base import missing
from dragoman.retrieval.http.foreign import ForeignRetriever

QUERIES = ["glass market of Arlen", "Which town is known for salt?", "wool Jorvik", "harbour", "market"]


async def test_finds_whole_passages_best_first(retriever: Retriever, corpus: list[Passage]) -> None:
    known = {passage.id: passage for passage in corpus}
    results = await retriever.search(QUERIES, 5)
    assert len(results) == len(QUERIES)
    for hits in results:
        assert 0 < len(hits) <= 5
        assert all(hit.passage == known[hit.passage.id] for hit in hits)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
    assert results[0][0].passage.id == "arlen-glass"
    assert results[3][0].passage.id == "untitled"


async def test_pages_are_disjoint_and_make_up_a_longer_search(retriever: Retriever, corpus: list[Passage]) -> None:
    query = "the salt market of Corvo"
    [everything] = await retriever.search([query], len(corpus) + 10)
    pages = []
    for page in range(len(corpus)):
        [hits] = await retriever.search([query], 3, page)
        pages += hits
        if len(hits) < 3:
            break
    ids = [hit.passage.id for hit in pages]
    assert len(ids) > 20
    assert len(set(ids)) == len(ids)
    assert pages == everything


async def test_pages_past_the_end_are_empty(retriever: Retriever) -> None:
    assert await retriever.search(["glass"], 5, page=1_000_000_000) == [[]]


async def test_equal_passages_keep_one_order(retriever: Retriever) -> None:
    query = "the same words stand in both of these passages"
    [first], [second] = await retriever.search([query], 1, 0), await retriever.search([query], 1, 1)
    both = {first[0].passage.id, second[0].passage.id}
    assert both == {"twin-a", "twin-b"}
    for k in (2, 3, 7):
        [hits] = await retriever.search([query], k)
        assert hits[0].passage == first[0].passage
        assert hits[1].passage == second[0].passage


async def test_results_stand_in_the_order_of_the_queries(retriever: Retriever) -> None:
    wool, salt, again = await retriever.search(["wool Jorvik", "salt Brisa", "wool Jorvik"], 3)
    assert wool[0].passage.id == "jorvik-wool"
    assert salt[0].passage.id == "brisa-salt"
    assert again == wool
    assert await retriever.search([], 3) == []


@pytest.mark.parametrize(("k", "page"), [(0, 0), (-3, 0), (5, -1)])
async def test_refuses_impossible_pages(retriever: Retriever, k: int, page: int) -> None:
    with pytest.raises(UserError, match=r"at least one passage|count from 0"):
        await retriever.search(["glass"], k, page)


async def test_reads_every_script(retriever: Retriever) -> None:
    tokyo, zurich = await retriever.search(["東京は日本の首都です", "Grüße aus Zürich 😀"], 3)
    assert tokyo[0].passage.id == "tokyo"
    assert zurich[0].passage.id == "zurich"


@pytest.mark.parametrize(
    "query",
    [
        "qqxyzzy vvblorft",
        'AND OR ( "glass',
        "half a pair \ud83d of surrogates",
        "nul \x00 byte",
        "😀" * 50,
        "the of and",
    ],
)
async def test_takes_any_text_for_a_query(retriever: Retriever, query: str) -> None:
    [hits] = await retriever.search([query], 4)
    assert len(hits) <= 4
    assert all(hit.passage.text for hit in hits)


async def test_takes_a_query_of_thousands_of_words(retriever: Retriever) -> None:
    [hits] = await retriever.search([" ".join(["glass Arlen", *(f"w{n}" for n in range(2500))])], 3)
    assert len(hits) == 3


async def test_finds_nothing_for_a_blank_query(retriever: Retriever) -> None:
    blank, glass, spaces = await retriever.search(["", "glass of Arlen", " \n"], 3)
    assert blank == spaces == []
    assert glass[0].passage.id == "arlen-glass"


async def test_answers_fifty_searches_at_once(retriever: Retriever, corpus: list[Passage]) -> None:
    towns = [passage for passage in corpus if passage.title.startswith(("Glass", "Salt", "Wool", "Copper"))]
    asked = (towns * 2)[:50]
    results = await asyncio.gather(*(retriever.search([f"{p.title} {p.text}"], 1 + n % 3) for n, p in enumerate(asked)))
    assert [hits[0].passage for [hits] in results] == asked
    assert [len(hits) for [hits] in results] == [1 + n % 3 for n in range(50)]


async def test_passes_the_health_check(retriever: Retriever, corpus: list[Passage]) -> None:
    await check_health(retriever, corpus)
    await check_health(retriever, None)
    stranger = Passage("stranger", "Unheard of", "Xylophones quarrel beneath quarantined zeppelins.")
    another = Passage("another", "Unseen", "Quizzical marmots juggle vexed pharaohs.")
    with pytest.raises(UserError, match=r"'stranger'.*build the index again"):
        await check_health(retriever, [corpus[0], stranger, another])


async def test_says_which_passages_it_lacks(retriever: Retriever, corpus: list[Passage]) -> None:
    if isinstance(retriever, ForeignRetriever):
        pytest.skip("servers of others have no route for it")
    known = [passage.id for passage in corpus]
    assert await missing(retriever, ["nowhere", known[0], "", known[-1], "no\nwhere"]) == ["nowhere", "", "no\nwhere"]
    assert await missing(retriever, known) == []


async def test_of_a_retriever_that_cannot_say_nothing_is_missing(listed: Callable[..., Retriever]) -> None:
    assert await missing(listed(["a"]), ["b"]) == []

"""Reciprocal rank fusion, and pages that stay right however deep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.types import Passage
from dragoman.retrieval.base import Hit, Retriever
from dragoman.retrieval.methods.hybrid import HybridRetriever, reciprocal_rank_fusion

IDS = [f"d{n}" for n in range(12)]
ranking = st.lists(st.sampled_from(IDS), unique=True)


def test_fuses_as_the_paper_says() -> None:
    fused = reciprocal_rank_fusion([["a", "b", "c"], ["c", "a"]])
    assert fused == [
        ("a", pytest.approx(1 / 61 + 1 / 62)),
        ("c", pytest.approx(1 / 63 + 1 / 61)),
        ("b", pytest.approx(1 / 62)),
    ]


def test_equals_of_equal_rank_are_ordered_by_id() -> None:
    assert [id for id, _ in reciprocal_rank_fusion([["b", "x"], ["a", "y"]])] == ["a", "b", "x", "y"]


@pytest.mark.parametrize("turn", [1, -1])
def test_what_a_ranking_of_weight_0_adds_stands_in_its_order(turn: int) -> None:
    rankings, weights = [["m", "z", "a"], ["m"]][::turn], [0.0, 1.0][::turn]
    assert [id for id, _ in reciprocal_rank_fusion(rankings, 60, weights)] == ["m", "z", "a"]


@given(st.lists(ranking, min_size=1, max_size=4), st.floats(0, 100))
def test_fusion_holds_every_id_once_with_falling_scores(rankings: list[list[str]], k: float) -> None:
    fused = reciprocal_rank_fusion(rankings, k)
    ids = [id for id, _ in fused]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id for r in rankings for id in r}
    best = {id: min(r.index(id) for r in rankings if id in r) for id in ids}
    keys = [(-score, best[id], id) for id, score in fused]
    assert keys == sorted(keys)


@given(st.lists(ranking, min_size=1, max_size=4), st.randoms())
def test_fusion_does_not_depend_on_the_order_of_rankings(rankings: list[list[str]], random: Any) -> None:
    shuffled = list(rankings)
    random.shuffle(shuffled)
    assert reciprocal_rank_fusion(shuffled) == reciprocal_rank_fusion(rankings)


@given(st.lists(ranking, min_size=1, max_size=4))
def test_what_every_ranking_prefers_the_fusion_prefers(rankings: list[list[str]]) -> None:
    place = {id: n for n, (id, _) in enumerate(reciprocal_rank_fusion(rankings))}
    for a in place:
        for b in place:
            preferred = [b not in r or (a in r and r.index(a) < r.index(b)) for r in rankings]
            if a != b and all(preferred) and any(a in r for r in rankings):
                assert place[a] < place[b]


@given(ranking, ranking, st.integers(1, 5), st.integers(1, 7))
def test_pages_are_slices_of_one_order(first: list[str], second: list[str], pool: int, k: int) -> None:
    hybrid = HybridRetriever([Fixed(first), Fixed(second)], pool=pool)

    async def pages() -> tuple[list[Hit], list[Hit]]:
        [everything] = await hybrid.search(["q"], 50)
        turned = [hit for page in range(14) for hit in (await hybrid.search(["q"], k, page))[0]]
        return everything, turned

    everything, turned = asyncio.run(pages())
    assert turned == everything
    assert {hit.passage.id for hit in everything} == {*first, *second}
    assert all(a.score >= b.score for a, b in pairwise(everything))


class Fixed:
    def __init__(self, ids: list[str]) -> None:
        self.hits = [Hit(Passage(id, "", id), -float(n)) for n, id in enumerate(ids)]
        self.fingerprint = ",".join(ids)

    async def search(self, queries: Sequence[str], k: int, page: int = 0) -> list[list[Hit]]:
        return [self.hits[page * k : (page + 1) * k] for _ in queries]

    async def close(self) -> None:
        pass


async def test_fingerprint_follows_parts_and_settings(listed: Callable[..., Any]) -> None:
    def fingerprint(*parts: Retriever, **settings: Any) -> str:
        return HybridRetriever(parts, **settings).fingerprint

    one, two = listed("ab", "one"), listed("ab", "two")
    prints = {
        fingerprint(one),
        fingerprint(one, two),
        fingerprint(one, two, rrf_k=10),
        fingerprint(one, two, pool=10),
    }
    assert len(prints) == 4
    assert fingerprint(one, two) == fingerprint(listed("ab", "one"), listed("ab", "two"))


async def test_closes_its_parts_and_counts_them(listed: Callable[..., Any]) -> None:
    one, two = listed("abc"), listed("ab")
    hybrid = HybridRetriever([one, two])
    assert hybrid.passage_count == 3
    await hybrid.close()
    assert one.closed
    assert two.closed


def test_weights_count_ranks_of_one_ranking_more() -> None:
    fused = reciprocal_rank_fusion([["a", "b"], ["b", "a"]], 60, [2.0, 1.0])
    assert fused == [("a", pytest.approx(2 / 61 + 1 / 62)), ("b", pytest.approx(2 / 62 + 1 / 61))]
    assert reciprocal_rank_fusion([["a"], ["b"]], 60, [0.0, 1.0]) == [("b", pytest.approx(1 / 61)), ("a", 0)]


async def test_weights_of_an_index_reach_the_search(listed: Callable[..., Any]) -> None:
    parts = [listed(["a", "b"], fingerprint="one"), listed(["b", "a"], fingerprint="two")]
    plain, weighed = HybridRetriever(parts), HybridRetriever(parts, weights=[1.0, 3.0])
    [hits] = await weighed.search(["q"], 2)
    assert [hit.passage.id for hit in hits] == ["b", "a"]
    assert plain.fingerprint != weighed.fingerprint

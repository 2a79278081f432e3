"""The probe at the start of a run catches the retrievers that have ruined other people's runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.core.errors import RetrieverFault, UserError
from dragoman.core.types import Passage
from dragoman.retrieval import Hit, check_health
from dragoman.retrieval.health import check_ids


async def test_finds_passages_by_content_too(listed: Callable[..., Any]) -> None:
    retriever = listed("abc")
    twin = Passage("twin-of-b", "Title b", "Text of b.")
    await check_health(retriever, [retriever.hits[0].passage, twin])
    assert retriever.searched[0].startswith("Title a Text of a.")


async def test_only_the_best_k_count(listed: Callable[..., Any]) -> None:
    retriever = listed("abc")
    with pytest.raises(UserError, match=r"passage 'c' .*build the index again"):
        await check_health(retriever, [retriever.hits[2].passage], k=2)


async def test_an_index_that_misses_half_of_the_sample_passes_and_one_that_misses_more_is_refused_with_the_first(
    listed: Callable[..., Any],
) -> None:
    retriever = listed("ab")
    there = [hit.passage for hit in retriever.hits]
    gone = [Passage(id, f"Title {id}", f"Text of {id}.") for id in "xyz"]
    await check_health(retriever, [gone[0], *there, gone[1]])
    with pytest.raises(UserError, match=r"does not find passage 'x' \('Title x'\) by its own words"):
        await check_health(retriever, [gone[0], *there, *gone[1:]])


async def test_the_words_of_a_long_title_and_of_a_text_without_blanks_are_clipped_without_a_mark(
    listed: Callable[..., Any],
) -> None:
    retriever = listed("a")
    retriever.hits = [Hit(Passage("a", "one " * 50, "日本" * 10_000), 1.0)]
    await check_health(retriever, [retriever.hits[0].passage])
    assert retriever.searched == [f"{('one ' * 12).strip()} {'日本' * 12}"]


@pytest.mark.parametrize("sampled", [True, False])
async def test_refuses_empty_texts_and_rising_scores(listed: Callable[..., Any], sampled: bool) -> None:
    retriever = listed("abc")
    sample = [retriever.hits[0].passage] if sampled else None
    good = retriever.hits
    retriever.hits = [good[0], Hit(Passage("blank", "Title", " "), 0.5)]
    with pytest.raises(UserError, match="'blank' without text"):
        await check_health(retriever, sample)
    retriever.hits = [good[1], good[0]]
    with pytest.raises(UserError, match="does not order its passages by score"):
        await check_health(retriever, sample)


async def test_titles_may_be_empty(listed: Callable[..., Any]) -> None:
    retriever = listed("a")
    retriever.hits = [Hit(Passage("a", "", "Only text."), 1.0)]
    await check_health(retriever, [retriever.hits[0].passage])
    assert retriever.searched == [" Only text."]


async def test_a_search_that_fails_is_a_fault_told_in_one_sentence(listed: Callable[..., Any]) -> None:
    retriever = listed("a")
    retriever.failure = RetrieverFault("http://host: no answer")
    with pytest.raises(RetrieverFault, match="cannot search: http://host: no answer"):
        await check_health(retriever, None)


async def test_an_id_counts_where_a_text_under_another_does_not(listed: Callable[..., Any]) -> None:
    retriever = listed("ab")
    own = [hit.passage for hit in retriever.hits]
    twin = Passage("twin-of-b", "Title b", "Text of b.")
    await check_ids(retriever, [twin, *own])
    await check_ids(retriever, [twin, own[0]])
    with pytest.raises(UserError, match=r"'twin-of-b' .* by its id: its text came back as 'b'\. Let the server"):
        await check_ids(retriever, [twin])


@pytest.mark.parametrize(
    ("ids", "came"),
    [("a", r"'a' \('Title a'\) came first for its title and first words"), ("", "nothing came for its title")],
)
async def test_a_passage_that_is_not_found_is_named_with_what_came(
    listed: Callable[..., Any], ids: str, came: str
) -> None:
    with pytest.raises(UserError, match=rf"does not know passage 'x' \('X'\) of this corpus by its id: {came}"):
        await check_ids(listed(ids), [Passage("x", "X", "Of x.")])

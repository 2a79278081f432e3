"""Which passages are drawn: those of one split, alone or with one that has to do with them."""

import random

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from lands import lands

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.synthesis.shelf import COMMON, Shelf, split_passages

SHARES = {"train": 0.7, "dev": 0.08, "test": 0.22}


def bare(*ids):
    return [Passage(id, "", "nothing to see") for id in ids]


def pairs(shelf, seed=0, **wanted):
    rng = random.Random(seed)
    return {tuple(p.id for p in shelf.draw(rng, count=2, **wanted)) for _ in range(200)}


@given(
    ids=st.lists(st.text(min_size=1, max_size=4), min_size=3, max_size=40, unique=True),
    weights=st.tuples(*[st.integers(1, 50)] * 3),
    seed=st.integers(),
    order=st.randoms(use_true_random=False),
)
def test_every_passage_is_of_one_split_and_every_split_has_one(ids, weights, seed, order):
    shares = {name: weight / sum(weights) for name, weight in zip(SHARES, weights, strict=True)}
    passages = bare(*ids)
    splits = split_passages(passages, shares, seed)
    dealt = [p.id for own in splits.values() for p in own]
    assert sorted(dealt) == sorted(ids)
    assert list(splits) == list(shares) and all(splits.values())
    for split, share in shares.items():  # off by rounding, and by what lifts another split to its one passage
        assert abs(len(splits[split]) - share * len(ids)) <= 3
    order.shuffle(passages)
    assert split_passages(passages, shares, seed) == splits


def test_passages_are_shared_out_by_the_shares_and_otherwise_under_another_seed():
    passages = bare(*map(str, range(100)))
    splits = split_passages(passages, SHARES, 0)
    assert {split: len(own) for split, own in splits.items()} == {"train": 70, "dev": 8, "test": 22}
    assert split_passages(passages, SHARES, 1) != splits


def test_chunks_of_one_text_are_of_one_split_since_neighbours_may_overlap():
    passages = bare(*(f"t{text}#{chunk}" for text in range(20) for chunk in range(4)))
    splits = split_passages(passages, SHARES, 0)
    texts = [{p.id.partition("#")[0] for p in own} for own in splits.values()]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 20
    assert {split: len(own) for split, own in splits.items()} == {"train": 56, "dev": 8, "test": 16}


@pytest.mark.parametrize("seed", range(20))
def test_texts_of_unequal_size_leave_most_to_train_and_no_split_empty(seed):
    passages = bare(*(f"t{text}#{chunk}" for text, chunks in enumerate((5, 300, 5, 5)) for chunk in range(chunks)))
    splits = split_passages(passages, SHARES, seed)
    texts = [{p.id.partition("#")[0] for p in own} for own in splits.values()]
    assert sum(map(len, texts)) == len(set().union(*texts)) == 4
    assert list(splits) == list(SHARES) and sum(map(len, splits.values())) == len(passages)
    assert len(splits["train"]) > len(splits["test"]) and all(splits.values()) and len(splits["train"]) >= 300


def test_chunks_of_fewer_texts_than_splits_are_shared_out_one_by_one():
    assert all(split_passages(bare("t#0", "t#1", "t#2"), SHARES, 0).values())


def test_too_few_passages():
    with pytest.raises(
        UserError, match=r"^2 passages cannot be shared out to train, dev, test: each asks about its own$"
    ):
        split_passages(bare("a", "b"), SHARES, 0)


def test_two_are_related_by_a_name_that_both_have():
    shelf = Shelf(
        [
            Passage("a", "Alder", "some say that King Olaf of Birka planted it"),
            Passage("b", "Beech", "it was felled by King Olaf"),
            Passage("c", "Cedar", "no relation of an Alder at all"),  # which is a title
            Passage("d", "Dogwood", "it grows by itself"),
        ]
    )
    assert pairs(shelf) == {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}


def test_two_are_related_by_a_triple():
    passages = [Passage(id, title, "nothing") for id, title in (("a", "Alder"), ("b", "Beech"), ("c", "Cedar"))]
    triples = [("Alder", "kin", "Beech"), ("Cedar", "kin", "Cedar"), ("Cedar", "kin", "Dogwood")]
    assert pairs(Shelf(passages, triples)) == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(("count", "related"), [(COMMON, True), (COMMON + 1, False)])
def test_a_name_that_is_everywhere_relates_nothing(count, related):
    shelf = Shelf([Passage(f"{i:02}", f"T{i}", "all of them mention the Empire") for i in range(count)])
    assert bool(shelf.draw(random.Random(0), count=2)) == related


def test_no_two_are_drawn_where_none_are_related():
    shelf = Shelf(bare("a", "b", "c"))
    assert shelf.draw(random.Random(0), count=2) == ()
    assert {p.id for _ in range(50) for p in shelf.draw(random.Random(_), count=1)} == {"a", "b", "c"}


def test_the_unpopular_are_the_third_whose_names_the_others_mention_least():
    passages = [
        Passage("a", "Alder", "near a Beech and a Cedar"),
        Passage("b", "Beech", "near a Cedar and a Dogwood"),
        Passage("c", "Cedar", "near a Beech and a Dogwood"),
        Passage("d", "Dogwood", "near a Beech and a Cedar"),
        Passage("e", "Elm", "near a Dogwood"),
        Passage("f", "Fir", "near a Fir and a Elm"),
    ]
    shelf, rng = Shelf(passages), random.Random(0)
    assert {shelf.draw(rng, count=1, unpopular=True)[0].id for _ in range(50)} == {"a", "f"}
    assert {shelf.draw(rng, count=1)[0].id for _ in range(200)} == set("abcdef")
    assert {first for first, _ in pairs(shelf, unpopular=True)} == {"a", "f"}


def test_where_no_unpopular_one_is_related_any_two_are_drawn():
    passages = [
        Passage("a", "", "alone"),
        Passage("b", "Beech", "near a Cedar"),
        Passage("c", "Cedar", "near a Beech"),
    ]
    assert pairs(Shelf(passages), unpopular=True) == {("b", "c"), ("c", "b")}


@examples(20)
@given(seed=st.integers(), count=st.integers(3, 60), order=st.randoms(use_true_random=False))
def test_two_are_different_and_of_the_shelf_and_depend_on_no_order(seed, count, order):
    passages, triples = lands(count)
    own = split_passages(passages, SHARES, seed)["train"]
    drawn = Shelf(own, triples).draw(random.Random(seed), count=2)
    assert not drawn or (drawn[0] != drawn[1] and set(drawn) <= set(own))
    order.shuffle(own)
    assert Shelf(own, triples).draw(random.Random(seed), count=2) == drawn

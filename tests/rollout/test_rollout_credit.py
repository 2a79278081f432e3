"""Credit, C-3PO eq. 5: by hand, and its invariants over random trees."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.rollout.credit import credit
from dragoman.rollout.record import Episode, Node, Trajectory


def node(id: str, parent: str | None, depth: int) -> Node:
    return Node(
        id=id, parent=parent, point=f"after {parent}", role="r", depth=depth, prompt=[], prompt_ids=[],
        completion_ids=[], logprobs=[], text=id, action=id, temperature=1, started=0, seconds=0,
        prompt_tokens=0, completion_tokens=0,
    )  # fmt: skip


def episode(ways: list[tuple[list[str], float | None]]) -> Episode:
    nodes: dict[str, Node] = {}
    for way, _ in ways:
        for depth, (parent, id) in enumerate(zip([None, *way], way, strict=False), start=1):
            nodes.setdefault(id, node(id, parent, depth))
    return Episode(
        key="k", question={}, system="s", config={}, nodes=list(nodes.values()), calls=[], started=0, seconds=0,
        trajectories=[
            Trajectory(nodes=w, steps=w, answer="", passages=[], stop="answered", rewards={"r": r}) for w, r in ways
        ],
    )  # fmt: skip


def test_by_hand():
    #      a            credit(a) = (1 + 0 + 1) / 3
    #    b   c          credit(b) = (1 + 0) / 2, credit(c) = 1
    #   d e   f
    tree = episode([(["a", "b", "d"], 1.0), (["a", "b", "e"], 0.0), (["a", "c", "f"], 1.0)])
    assert credit(tree, "r") == {"a": 2 / 3, "b": 0.5, "c": 1.0, "d": 1.0, "e": 0.0, "f": 1.0}


def test_a_leaf_counts_as_often_as_it_was_drawn():
    #      a            credit(b) = (3 * 1 + 0) / 4, credit(a) = (2 * 3 * 1 + 2 * 1 * 0 + 1) / (6 + 2 + 1)
    #  b x2   c
    # d x3  e   f
    tree = episode([(["a", "b", "d"], 1.0), (["a", "b", "e"], 0.0), (["a", "c", "f"], 1.0)])
    merged = {"b": 1, "d": 2}
    tree = tree.model_copy(update={"nodes": [n.model_copy(update={"merged": merged.get(n.id, 0)}) for n in tree.nodes]})
    assert credit(tree, "r") == {"a": 7 / 9, "b": 0.75, "c": 1.0, "d": 1.0, "e": 0.0, "f": 1.0}


def test_each_step_has_its_price():
    tree = episode([(["a", "b", "d"], 1.0), (["a", "c"], 1.0)])
    credits = credit(tree, "r", price=0.1)
    assert credits == {
        "a": pytest.approx(0.75),
        "b": pytest.approx(0.7),
        "c": pytest.approx(0.8),
        "d": pytest.approx(0.7),
    }


def test_an_unscored_leaf_is_not_a_zero():
    tree = episode([(["a", "b"], 1.0), (["a", "c"], None)])
    assert credit(tree, "r") == {"a": 1.0, "b": 1.0, "c": None}
    assert credit(tree, "another reward") == {"a": None, "b": None, "c": None}


def grow(shape: list, name: str = "n") -> list[list[str]]:
    if not shape:
        return [[name]]
    return [[name, *way] for i, child in enumerate(shape) for way in grow(child, f"{name}.{i}")]


shapes = st.recursive(st.just([]), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=12)


@given(shapes, st.randoms(use_true_random=False))
def test_invariants(shape, rng: random.Random):
    ways = [(way, float(rng.randrange(2))) for way in grow(shape)]
    tree = episode(ways)
    credits = credit(tree, "r")
    rewards = [r for _, r in ways]
    assert abs(credits["n"] - sum(rewards) / len(rewards)) < 1e-12  # the root is the mean of all leaves
    for way, reward in ways:
        assert credits[way[-1]] == reward  # a leaf is its own reward
    for parent in tree.nodes:  # and credit lies between the children's extremes
        children = [credits[n.id] for n in tree.nodes if n.parent == parent.id]
        if children:
            assert min(children) - 1e-12 <= credits[parent.id] <= max(children) + 1e-12
    shuffled = tree.model_copy(update={"nodes": rng.sample(tree.nodes, len(tree.nodes))})
    assert credit(shuffled, "r") == credits

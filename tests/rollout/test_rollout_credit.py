"""Credit, C-3PO eq. 5: by hand, and its invariants over random trees."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.rollout.credit import credit, expected, shares
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


def merged(tree: Episode, **times: int) -> Episode:
    return tree.model_copy(update={"nodes": [n.model_copy(update={"merged": times.get(n.id, 0)}) for n in tree.nodes]})


TWO_WAYS = episode([(["a", "b", "d"], 1.0), (["a", "b", "e"], 0.0), (["a", "c", "f"], 1.0)])


def test_a_bushy_branch_counts_no_more_than_a_thin_one():
    #      a            credit(b) = (1 + 0) / 2, credit(c) = 1
    #    b   c          credit(a) = (1/2 + 1) / 2
    #   d e   f
    assert credit(TWO_WAYS, "r") == {"a": 0.75, "b": 0.5, "c": 1.0, "d": 1.0, "e": 0.0, "f": 1.0}


def test_an_action_counts_as_often_as_it_was_drawn():
    #      a            credit(b) = (3 * 1 + 0) / 4, credit(a) = (2 * 3/4 + 1) / 3
    #  b x2   c
    # d x3  e   f
    credits = credit(merged(TWO_WAYS, b=1, d=2), "r")
    assert credits == {"a": pytest.approx(5 / 6), "b": 0.75, "c": 1.0, "d": 1.0, "e": 0.0, "f": 1.0}


def test_an_answer_beside_a_search_with_three_failing_selections_is_half_of_what_the_policy_earns():
    tree = episode([(["a", "answer"], 1.0), *((["a", "search", f"keep {i}"], 0.0) for i in range(3))])
    assert credit(tree, "r")["a"] == 0.5


def test_an_action_counts_by_its_probability_where_that_is_known_of_all():
    listed = {"b": 0.6, "c": 0.2}  # of four options the two likeliest
    tree = TWO_WAYS.model_copy(
        update={"nodes": [n.model_copy(update={"probability": listed.get(n.id)}) for n in TWO_WAYS.nodes]}
    )
    assert credit(tree, "r")["a"] == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert shares([n for n in tree.nodes if n.id in "bd"]) == [0.5, 0.5]  # of one it is not known


def test_what_a_policy_may_expect_is_the_worth_of_the_first_states_by_its_probabilities():
    siblings = episode([(["a"], 1.0), (["b"], 0.0), (["c"], 0.0)])
    likely = {"a": 0.6, "b": 0.2, "c": 0.0}  # the plain mean of the three is 1/3
    known = [n.model_copy(update={"probability": likely[n.id]}) for n in siblings.nodes]
    assert expected(siblings.model_copy(update={"nodes": known}), "r") == pytest.approx(0.75)
    assert expected(TWO_WAYS, "r") == 0.75 == credit(TWO_WAYS, "r")["a"]


@pytest.mark.parametrize("reward", [0.5, None])
@pytest.mark.parametrize("way", [["a", "b"], []])
def test_what_a_policy_may_expect_of_one_trajectory_is_its_reward(way, reward):
    assert expected(episode([(way, reward)]), "r") == reward


def branch(id: str, point: str, parent: str | None = None, joins: tuple[str, ...] = ()) -> Node:
    return node(id, parent, 1).model_copy(update={"point": point, "joins": list(joins)})


def parallel(nodes: list[Node], ways: dict[str, float | None]) -> Episode:
    """By the ids of each trajectory's nodes."""
    tree = episode([(way.split(), reward) for way, reward in ways.items()])
    return tree.model_copy(update={"nodes": nodes})


A0, A1, B0, B1 = branch("a0", "A"), branch("a1", "A"), branch("b0", "B"), branch("b1", "B")


@pytest.mark.parametrize(("b0", "b1"), [(1.0, 0.0), (0.0, 1.0)])
def test_siblings_in_a_branch_earn_nothing_by_what_the_branch_beside_it_did(b0, b1):
    credits = credit(parallel([A0, A1, B0, B1], {"a0 b0": b0, "a1 b0": b0, "a0 b1": b1}), "r")
    assert credits == {"a0": b0, "a1": b0, "b0": b0, "b1": b1}


def test_what_forks_in_a_branch_and_after_the_join_stays_with_the_runs_equal_outside():
    # In branch A the first action forks again (x, y). After the join of a0, x and b0 there is another fork (c, d).
    nodes = [
        branch("p", "P"),
        *(branch(id, "A", "p") for id in ("a0", "a1")),
        *(branch(id, "B", "p") for id in ("b0", "b1")),
        *(branch(id, "A'", "a0") for id in ("x", "y")),
        *(branch(id, "C", "p", ("x", "b0")) for id in ("c", "d")),
        branch("e", "E", "p", ("y", "b0")),
        branch("f", "F", "p", ("a1", "b0")),
        *(branch(id, "G", "p", ("x", "b1")) for id in ("g", "h", "i")),
    ]
    ways = {
        "p a0 x b0 c": 1.0,
        "p a0 x b0 d": 0.0,
        "p a0 y b0 e": 1.0,
        "p a1 b0 f": 0.0,
        "p a0 x b1 g": 0.0,
        "p a0 x b1 h": 0.0,
        "p a0 x b1 i": 1.0,
    }
    credits = credit(parallel(nodes, ways), "r")
    expected = {"x": 1 / 2, "y": 1, "a0": 3 / 4, "a1": 0, "b0": 1 / 2, "b1": 1 / 3}
    # branch A is worth (3/4 + 0) / 2, branch B (1/2 + 1/3) / 2
    expected |= {"p": (3 / 8 + 5 / 12) / 2, "c": 1, "d": 0, "e": 1, "f": 0, "g": 0, "h": 0, "i": 1}
    assert credits == {id: pytest.approx(value) for id, value in expected.items()}


def test_a_branch_whose_compared_run_was_not_scored_has_no_credit():
    credits = credit(parallel([A0, A1, B0, B1], {"a0 b0": None, "a1 b0": 1.0, "a0 b1": 0.0}), "r")
    assert credits == {"a0": None, "a1": 1.0, "b0": None, "b1": 0.0}


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
    for way, reward in ways:
        assert credits[way[-1]] == reward  # a leaf is its own reward
    for parent in tree.nodes:  # and what is above it the mean of what it leads to
        children = [credits[n.id] for n in tree.nodes if n.parent == parent.id]
        if children:
            assert credits[parent.id] == pytest.approx(sum(children) / len(children))
    shuffled = tree.model_copy(update={"nodes": rng.sample(tree.nodes, len(tree.nodes))})
    assert credit(shuffled, "r") == {id: pytest.approx(value) for id, value in credits.items()}

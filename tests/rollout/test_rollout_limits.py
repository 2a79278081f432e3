"""Limits on a whole tree: how much of it is cut, where, and that this is held against nobody."""

import random
from collections import Counter

import pytest
from examples import examples
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st
from test_rollout_tree import Fan
from test_rollout_tree import backends as fan_backends

from dragoman.core.errors import PromptTooLong
from dragoman.core.types import Passage, Question
from dragoman.rewards import Reward
from dragoman.rollout.backends import Backends
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import samples
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.base import StopReason

QUESTION = Question("q", "Which currency has the country whose capital is Thimphu?", ("ngultrum",))
PASSAGES = [
    Passage("bhutan", "Bhutan", "Thimphu is the capital of Bhutan"),
    Passage("ngultrum", "Ngultrum", "the currency of Bhutan is the ngultrum"),
    *(Passage(f"x{i}", f"Noise {i}", f"nothing number {i}") for i in range(9)),
]
C3PO = build("c3po", {"max_depth": 7, "k": 3})
CUTS = {StopReason.NODE_LIMIT, StopReason.TOKEN_LIMIT}


def proxy(prompt: str, rng: random.Random) -> str:
    if "Choose one action" in prompt:  # the grammar stands first; one that is narrowed to a form is a forced action
        search = f"[Retrieval] Thimphu {rng.randrange(3)}"
        kinds = {r"\[No": "[No Retrieval]", r"\[Re": search, r"\[Pl": "[Planning]"}
        return kinds.get(prompt[:4]) or rng.choice(list(kinds.values()))
    if "Facts so far" in prompt:
        search, answer = f"Action: [Retrieval] number {rng.randrange(9)}", "Action: [LLM]"
        return forced(prompt, {r"Action: \[R": search, r"Action: \[L": answer}) or rng.choice([search, answer])
    some = rng.choice(["Action: [1]", "Action: [1, 2]", "Action: []"])
    return forced(prompt, {r"Action: \[a": "Action: [all]", r"Action: \[(": some}) or some


def forced(prompt: str, kinds: dict[str, str]) -> str | None:
    return next((text for start, text in kinds.items() if prompt.startswith(start)), None)


def llm(prompt: str, rng: random.Random) -> str:
    return "1. find the country" if "List the facts" in prompt else rng.choice(["ngultrum", "rupee"])


def backends(jitter: random.Random | None = None) -> Backends:
    return Backends(
        llm=ScriptedEngine(llm, jitter=jitter),
        proxy=ScriptedEngine(proxy, jitter=jitter),
        retriever=ListRetriever(PASSAGES),
    )


def tree_of(breadth=(2, 2, 2, 2, 1), *, force=1, max_nodes=None, max_tokens=None) -> Exploration:
    return Exploration(breadth=tuple(breadth), force=force, max_nodes=max_nodes, max_tokens=max_tokens)


async def grow(exploration: Exploration, *, seed: int = 0, jitter: random.Random | None = None, **kwargs) -> Episode:
    return await Tree(QUESTION, C3PO, backends(jitter), exploration=exploration, seed=seed, **kwargs).grow()


def shape(episode: Episode) -> tuple:
    """All of an episode but its timings."""
    return (
        [(n.id, n.parent, n.point, n.role, n.depth, n.text, n.merged) for n in episode.nodes],
        [(c.id, c.name, str(c.output)) for c in episode.calls],
        episode.trajectories,
    )


def kinds_and_stops(episode: Episode) -> list[tuple[str, str]]:
    nodes = {n.id: n for n in episode.nodes}
    return sorted((nodes[t.nodes[0]].action["type"], t.stop.value) for t in episode.trajectories)


breadths = st.lists(st.integers(1, 4), min_size=1, max_size=5)
seeds = st.integers(0, 10_000)


async def test_without_limits_every_decision_draws_as_many_actions_as_its_depth_has():
    w = backends()
    episode = await Tree(QUESTION, C3PO, w, exploration=tree_of((2, 3, 1)), seed=0).grow()
    assert len(episode.nodes) > 12
    depths = {n.point: n.depth for n in episode.nodes}
    drawn = {p: sum(1 + n.merged for n in episode.nodes if n.point == p) for p in depths}
    assert {(depths[p], drawn[p]) for p in depths} == {(1, 3 * 2), (2, 3), *((d, 1) for d in depths.values() if d > 2)}


async def test_states_fork_by_chance_at_any_depth_and_the_same_ones_again():
    exploration, forked = tree_of((3,)).model_copy(update={"forks": 0.3, "force": 0}), Counter[int]()
    states = Counter[int]()
    for seed in range(60):
        grown = [await Tree(QUESTION, C3PO, backends(), exploration=exploration, seed=seed).grow() for _ in range(2)]
        assert [n.id for n in grown[0].nodes] == [n.id for n in grown[1].nodes]
        depths = {n.point: n.depth for n in grown[0].nodes}
        drawn = {p: sum(1 + n.merged for n in grown[0].nodes if n.point == p) for p in depths}
        assert set(drawn.values()) <= {1, 3}
        states.update(depths.values())
        forked.update(depth for point, depth in depths.items() if drawn[point] == 3)
    assert sum(forked.values()) / sum(states.values()) == pytest.approx(0.3, abs=0.06)
    assert all(forked[depth] for depth in (1, 2, 3, 4))


@given(seed=seeds, limit=st.integers(3, 40), breadth=breadths, force=st.integers(1, 3))
@examples()
async def test_a_tree_never_has_more_nodes_than_allowed(seed, limit, breadth, force):
    episode = await grow(tree_of(breadth, force=force, max_nodes=limit), seed=seed)
    assert 3 <= len(episode.nodes) <= limit


@given(seed=seeds, limit=st.integers(1, 20), breadth=breadths)
@examples()
async def test_nor_when_the_first_decision_is_not_forced(seed, limit, breadth):
    episode = await grow(tree_of(breadth, force=0, max_nodes=limit), seed=seed)
    assert 1 <= len(episode.nodes) <= limit


@pytest.mark.parametrize("limit", [1, 2])
async def test_but_a_forced_first_decision_is_whole_even_when_the_limit_is_smaller(limit):
    episode = await grow(tree_of(max_nodes=limit))
    assert [n.depth for n in episode.nodes] == [1, 1, 1]


async def test_a_tree_whose_parallel_branches_fork_never_has_more_nodes_than_allowed():
    exploration = Exploration(breadth=(2,), force=0, max_nodes=6)
    episode = await Tree(QUESTION, Fan(), fan_backends(), exploration=exploration).grow()
    assert len(episode.nodes) <= 6  # there are 7: 2 in each of two branches, and 3 where they meet


@given(
    seed=seeds,
    nodes=st.none() | st.integers(3, 40),
    tokens=st.none() | st.integers(1, 1500),
    breadth=breadths,
    force=st.integers(0, 1),
)
@examples()
async def test_a_limited_tree_is_a_part_of_the_whole_one_and_a_cut_says_so(seed, nodes, tokens, breadth, force):
    whole = await grow(tree_of([1, *breadth], force=force), seed=seed)
    limited = tree_of([1, *breadth], force=force, max_nodes=nodes, max_tokens=tokens)
    cut = await grow(limited, seed=seed)
    assert {(n.id, n.parent, n.text) for n in cut.nodes} <= {(n.id, n.parent, n.text) for n in whole.nodes}
    assert {n for t in cut.trajectories for n in t.nodes} == {n.id for n in cut.nodes}
    assert not cut.faulty
    allowed = {StopReason.NODE_LIMIT} if nodes is not None else set()
    allowed |= {StopReason.TOKEN_LIMIT} if tokens is not None else set()
    finished = {tuple(t.nodes): t for t in whole.trajectories}
    for trajectory in cut.trajectories:
        if trajectory.stop in CUTS:
            assert trajectory.stop in allowed
            assert trajectory.answer is None and trajectory.passages == []
            assert "used up its share" in trajectory.error
        else:  # what was not cut ends as it would have
            assert trajectory == finished[tuple(trajectory.nodes)]


async def test_every_kind_is_tried_down_to_the_depth_that_is_forced():
    def kinds(episode: Episode, depth: int) -> set[frozenset[str]]:
        points = {n.point for n in episode.nodes if n.depth == depth}
        return {frozenset(n.action["type"] for n in episode.nodes if n.point == p) for p in points}

    episode = await grow(tree_of((1,), force=2))
    assert kinds(episode, 1) == {frozenset({"NoRetrieval", "Search", "Plan"})}
    assert kinds(episode, 2) == {frozenset({"KeepAll", "Keep"}), frozenset({"Search", "Answer"})}
    assert all(len(kind) == 1 for kind in kinds(episode, 3))
    assert {n.forced for n in episode.nodes if n.depth <= 2} == {True}


async def test_three_nodes_are_one_of_each_strategy_and_no_more():
    episode = await grow(tree_of(max_nodes=3))
    assert kinds_and_stops(episode) == [("NoRetrieval", "answered"), ("Plan", "node_limit"), ("Search", "node_limit")]
    assert [n.depth for n in episode.nodes] == [1, 1, 1]


@pytest.mark.parametrize(("limit", "drawn"), [(3, []), (5, []), (6, [1, 1]), (8, [1, 1]), (9, [2, 2]), (12, [2, 2])])
async def test_siblings_share_equally_in_what_is_left(limit, drawn):
    # After one of each of three strategies two of them decide again, each with a third of what is left, and draw 2.
    episode = await grow(tree_of((1, 2, 1), max_nodes=limit))
    second = {n.point: 0 for n in episode.nodes if n.depth == 2}
    for node in episode.nodes:
        if node.depth == 2:
            second[node.point] += 1 + node.merged
    assert sorted(second.values()) == drawn


# The first decision costs a prompt of 3 tokens, "[No Retrieval]", "[Retrieval] Thimphu 0" and "[Planning]": 48 in all.
FIRST = 3 + 14 + 21 + 10


async def test_a_branch_without_tokens_left_decides_no_more():
    # The first decision is drawn while there is a token left; after it there is none, and only memory needs no decision.
    for limit in (1, FIRST):
        episode = await grow(tree_of((1,), max_tokens=limit))
        assert kinds_and_stops(episode) == [
            ("NoRetrieval", "answered"),
            ("Plan", "token_limit"),
            ("Search", "token_limit"),
        ]


async def test_a_branch_with_a_token_left_makes_its_decision_to_the_end():
    stops = kinds_and_stops(
        await grow(tree_of((1,), max_tokens=FIRST + 1))
    )  # which leaves each of three a third of one
    assert ("Search", "answered") in stops and ("Plan", "token_limit") in stops


@pytest.mark.parametrize(("each", "decides"), [(3 + 19, False), (3 + 19 + 1, True)])
async def test_what_the_llm_reads_and_writes_counts_too(each, decides):
    # the roadmap is a prompt of 3 tokens and "1. find the country"
    episode = await grow(tree_of((1,), max_tokens=FIRST + 3 * each))
    assert any(n.role == "decide" for n in episode.nodes) is decides


@pytest.mark.parametrize("limits", [{"max_nodes": 12}, {"max_tokens": 400}, {"max_nodes": 20, "max_tokens": 600}])
async def test_the_same_branches_are_cut_whatever_the_order_of_completion(limits):
    exploration = tree_of(**limits)
    expected = await grow(exploration, seed=5)
    assert {t.stop for t in expected.trajectories} & CUTS
    for delay in range(5):
        assert shape(await grow(exploration, seed=5, jitter=random.Random(delay))) == shape(expected)


async def test_a_killed_tree_is_cut_in_the_same_places_when_it_goes_on():
    exploration = tree_of(max_nodes=12, max_tokens=500)
    calls = []
    whole = await grow(exploration, seed=5, remember=lambda id, value: calls.append((id, value)))
    assert {t.stop for t in whole.trajectories} & CUTS
    for killed_after in range(0, len(calls) + 1, 3):
        assert shape(await grow(exploration, seed=5, recorded=dict(calls[:killed_after]))) == shape(whole)


@given(seed=seeds)
@examples(10, 40)
async def test_limits_that_nothing_comes_near_change_nothing(seed):
    unlimited = await grow(tree_of(), seed=seed)
    assert not {t.stop for t in unlimited.trajectories} & CUTS
    assert shape(await grow(tree_of(max_nodes=10**9, max_tokens=10**9), seed=seed)) == shape(unlimited)


async def test_a_cut_trajectory_has_no_reward_and_the_rest_of_the_tree_keeps_its_credit(tmp_path):
    with EpisodeStore(tmp_path) as store:
        (episode,) = await roll_out(
            [QUESTION],
            "c3po",
            C3PO,
            backends(),
            store,
            exploration=tree_of(max_nodes=12),
            seed=5,
            reward=Reward.of("cover_em"),
        )
    cut = [t for t in episode.trajectories if t.stop in CUTS]
    scored = [t for t in episode.trajectories if t.stop not in CUTS]
    assert cut and len(scored) > 1
    assert all(t.rewards == {} for t in cut)
    assert all(t.rewards["em"] in (0.0, 1.0) for t in scored)
    credits = credit(episode, "em")
    without = credit(episode.model_copy(update={"trajectories": scored}), "em")
    assert credits == without  # as if the others had never been
    assert {id for id, value in credits.items() if value is not None} == {n for t in scored for n in t.nodes}
    assert {s.node for s in samples(episode, "em")} == {n for t in scored for n in t.nodes}


async def test_a_cut_tree_is_finished_and_not_rolled_out_again(tmp_path):
    exploration = tree_of(max_nodes=12, max_tokens=400)
    with EpisodeStore(tmp_path) as store:
        first = await roll_out([QUESTION], "c3po", C3PO, backends(), store, exploration=exploration, seed=5)
    assert {t.stop for t in first[0].trajectories} & CUTS
    w = backends()
    with EpisodeStore(tmp_path) as store:
        assert list(store.done) == [first[0].key]
        assert await roll_out([QUESTION], "c3po", C3PO, w, store, exploration=exploration, seed=5) == first
        assert w.proxy.requests == w.llm.requests == []
        # other limits are another configuration
        (other,) = await roll_out([QUESTION], "c3po", C3PO, w, store, exploration=tree_of(max_nodes=13), seed=5)
    assert other.key != first[0].key and w.proxy.requests


async def test_a_tree_in_which_a_prompt_was_too_long_is_grown_again_as_it_was_until_the_context_is_longer(tmp_path):
    """Only what was too long is asked for again: an iteration of training that goes on learns from the same tree."""

    def short_sighted(prompt, rng):
        return PromptTooLong("exceeds the context") if "List the facts" in prompt else llm(prompt, rng)

    async def rolled_out(w: Backends) -> Episode:
        with EpisodeStore(tmp_path) as store:
            (episode,) = await roll_out([QUESTION], "c3po", C3PO, w, store, exploration=tree_of(), seed=5)
        return episode

    def limited() -> Backends:
        return Backends(
            llm=ScriptedEngine(short_sighted), proxy=ScriptedEngine(proxy), retriever=ListRetriever(PASSAGES)
        )

    first, w = await rolled_out(limited()), limited()
    assert {StopReason.PROMPT_TOO_LONG, StopReason.ANSWERED} <= {t.stop for t in first.trajectories}
    again = await rolled_out(w)
    assert (again.nodes, again.calls, again.trajectories) == (first.nodes, first.calls, first.trajectories)
    assert w.proxy.requests == w.retriever.queries == []
    assert len(w.llm.requests) == 1, "the roadmap is the same for each trajectory"
    whole = await rolled_out(backends())
    assert not whole.too_long and shape(whole) == shape(await grow(tree_of(), seed=5))

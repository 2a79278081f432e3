"""The figures of a rollout, against values counted by hand."""

from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.figures import busy_seconds, figures
from dragoman.rollout.record import Call, Episode, Node, Trajectory
from dragoman.rollout.tree import Tree
from dragoman.systems import build


def node(
    id: str,
    point: str,
    role: str,
    prompt: int,
    completion: int,
    cached: int = 0,
    merged: int = 0,
    parent: str | None = None,
) -> Node:
    return Node(
        id=id, parent=parent, point=point, role=role, depth=1, prompt=[], prompt_ids=[], completion_ids=[], logprobs=[],
        text=id, action=id, temperature=1, started=0, seconds=0, prompt_tokens=prompt, completion_tokens=completion,
        cached_tokens=cached, merged=merged,
    )  # fmt: skip


def call(id: str, prompt: int = 0, completion: int = 0, cached: bool = False) -> Call:
    return Call(
        id=id, kind="ask", name="answer", input=[], output="", started=0, seconds=0,
        prompt_tokens=prompt, completion_tokens=completion, cached=cached,
    )  # fmt: skip


def way(nodes: list[str], stop: str, **rewards: float | None) -> Trajectory:
    return Trajectory(nodes=nodes, steps=nodes, answer="", passages=[], stop=stop, rewards=rewards)


def episode(key: str, nodes, calls, trajectories, started: float, seconds: float) -> Episode:
    return Episode(
        key=key, question={"id": key}, system="s", config={}, nodes=nodes, calls=calls, trajectories=trajectories,
        started=started, seconds=seconds,
    )  # fmt: skip


FIRST = episode(
    "one",
    [
        node("a", "top", "router", prompt=100, completion=3, cached=60),
        node("b", "below a", "filter", prompt=50, completion=4, cached=30, merged=2, parent="a"),
        node("c", "below a", "filter", prompt=50, completion=5, cached=30, parent="a"),
    ],
    [call("x", 20, 6), call("y", 10, 1, cached=True), call("search")],
    [way(["a", "b"], "answered", em=1.0), way(["a", "c"], "answered", em=0.0), way(["a"], "node_limit")],
    started=10.0,
    seconds=5.0,
)
SECOND = episode(
    "two",
    [node("d", "top", "router", prompt=100, completion=2, merged=1)],  # the same point as in the first question
    [],
    [way(["d"], "engine_fault", em=None)],
    started=12.0,
    seconds=7.04,
)


def test_the_tokens_of_an_episode_count_a_prompt_once_for_all_siblings():
    # prompts 100 + 50, actions 3 + 4 + 5, calls 20 + 6 + 10 + 1
    assert FIRST.tokens == 199
    assert SECOND.tokens == 102


def test_figures_by_hand():
    assert figures([FIRST, SECOND], "em") == {
        "questions": 2,
        "trajectories": 4,
        "nodes": 4,
        "calls": 3,
        "llm_hits": 1,
        "llm_misses": 2,
        "tokens": 301,
        "seconds": 9.0,  # from 10.0 to 19.04, the two overlap
        "cached_share": 0.36,  # (60 + 30) of 100 + 50 + 100
        "saved_draws": 3,
        "reward": 0.75,  # of the question that was scored: b was drawn three times, c once
        "unscored": 2,
        "roles": {"filter": 2, "router": 2},
        "stops": {"answered": 2, "engine_fault": 1, "node_limit": 1},
        "depths": {"1": 2, "2": 2},
    }


def test_without_the_reward_every_trajectory_is_unscored():
    counted = figures([FIRST], "f1")
    assert (counted["reward"], counted["unscored"]) == (None, 3)


def test_nothing_rolled_out_is_all_zero():
    counted = figures([], "em")
    assert counted["reward"] is None
    assert (counted["roles"], counted["stops"], counted["depths"]) == ({}, {}, {})
    numbers = ("questions", "trajectories", "nodes", "calls", "tokens", "seconds", "cached_share", "unscored")
    assert all(counted[name] == 0 for name in numbers)


async def test_the_tokens_of_a_single_run_are_all_that_its_engines_read_and_wrote():
    said = iter(["[Planning]", "Action: [Retrieval] Bhutan", "Action: [1]", "Action: [LLM]"])
    proxy = ScriptedEngine(lambda prompt, rng: next(said))
    llm = ScriptedEngine(lambda prompt, rng: "ngultrum")
    backends = Backends(llm=llm, proxy=proxy, retriever=ListRetriever([Passage("p", "Bhutan", "pays in ngultrum")]))
    grown = await Tree(Question("q", "What does Bhutan pay with?"), build("c3po"), backends).grow()
    counted = figures([grown], "em")
    # each engine's prompt counts 3 tokens, and each letter it writes is one: four actions, roadmap and answer
    written = sum(map(len, ("[Planning]", "Action: [Retrieval] Bhutan", "Action: [1]", "Action: [LLM]"))) + 2 * 8
    assert counted["tokens"] == 6 * 3 + written
    assert (counted["nodes"], counted["calls"], counted["trajectories"]) == (4, 3, 1)
    assert counted["roles"] == {"decide": 2, "filter": 1, "router": 1}
    assert counted["depths"] == {"4": 1} and counted["stops"] == {"answered": 1}


def test_busy_seconds_by_hand():
    assert busy_seconds([]) == 0
    assert busy_seconds([(1, 2)]) == 2
    assert busy_seconds([(0, 2), (1, 2)]) == 3  # they overlap
    assert busy_seconds([(0, 10), (2, 3)]) == 10  # one lies within the other
    assert busy_seconds([(0, 1), (1, 1)]) == 2  # they touch
    assert busy_seconds([(100, 5), (0, 1)]) == 6  # a pause between two runs is left out
    assert busy_seconds(s for s in [(0, 10), (2, 3), (4, 8), (20, 1)]) == 13


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8))
def test_busy_seconds_are_the_seconds_in_which_anything_ran(spans):
    assert busy_seconds(spans) == len({second for start, length in spans for second in range(start, start + length)})

"""What is kept of untrained trees, by hand."""

import dataclasses
from collections import Counter

import pytest
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.types import Passage, Question
from dragoman.engines.base import Constraint, Request
from dragoman.engines.local import Vocabulary
from dragoman.rollout.backends import Backends
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.record import Episode, Marked, Node, Trajectory
from dragoman.rollout.samples import Marks, Sample
from dragoman.rollout.tree import Tree
from dragoman.systems import build
from dragoman.systems.options import listed
from dragoman.systems.prompts import Prompt
from dragoman.training.seeds import balance, counts, for_proxy, labelled, select, solutions, without_shots
from dragoman.training.settings import SeedsParams

STRATEGIES = {"N": "NoRetrieval", "P": "Plan", "S": "Search"}


def node(id: str, parent: str | None, depth: int, forced: bool) -> Node:
    """A node whose first letter says what it does; one in lower case is no first decision."""
    return Node(
        id=id, parent=parent, point=f"after {parent}", role="filter" if parent else "router", depth=depth,
        prompt=[("user", "?")], prompt_ids=[1], completion_ids=[2], logprobs=[-0.5], text=id,
        action={"type": STRATEGIES.get(id[0], "Keep")}, forced=forced and not parent, temperature=1.0,
        started=0, seconds=0, prompt_tokens=1, completion_tokens=1,
    )  # fmt: skip


def episode(ways: dict[str, float | None], *, forced: bool = True) -> Episode:
    """A tree from its trajectories, each written as the ids of its nodes."""
    nodes: dict[str, Node] = {}
    for way in ways:
        ids = way.split()
        for depth, (parent, id) in enumerate(zip([None, *ids], ids, strict=False), start=1):
            nodes.setdefault(id, node(id, parent, depth, forced))
    return Episode(
        key="k", question={"id": "q"}, system="s", config={}, nodes=list(nodes.values()), calls=[], started=0, seconds=0,
        trajectories=[
            Trajectory(nodes=w.split(), steps=w.split(), answer="", passages=[], stop="answered", rewards={"r": r})
            for w, r in ways.items()
        ],
    )  # fmt: skip


def kept(tree: Episode, **settings) -> list[str]:
    return [" ".join(t.nodes) for t in solutions(tree, "r", SeedsParams(**settings))]


def chosen(tree: Episode, **settings) -> list[str]:
    return sorted(s.node for s in select(tree, "r", SeedsParams(**settings)))


# Credits: N 1, P 3/4, a 1/2, b 1, S 1/2.
TREE = episode({"P a c": 1.0, "P a d": 0.0, "P b e g": 1.0, "P b e h": 1.0, "S i": 1.0, "S j": 0.0, "N": 1.0})


def test_solutions_come_from_each_strategy_in_turn():
    everything = ["N", "P b e g", "S i", "P b e h", "P a c"]
    assert [kept(TREE, solutions=n) for n in range(1, 7)] == [everything[:n] for n in range(1, 6)] + [everything]


def test_within_a_strategy_the_highest_mean_credit_comes_first():
    # P a c: (3/4 + 1/2 + 1) / 3 = 0.75; P b: (3/4 + 1) / 2 = 0.88; what earned nothing is no solution
    assert kept(episode({"P a c": 1.0, "P a d": 0.0, "P b": 1.0})) == ["P b", "P a c"]
    # P b e: (3/4 + 1 + 1) / 3 = 0.92 before the shorter P a c: (3/4 + 1/2 + 1) / 3 = 0.75
    assert kept(episode({"P a c": 1.0, "P a d": 0.0, "P b e f": 1.0, "P b e g": 1.0})) == [
        "P b e f",
        "P b e g",
        "P a c",
    ]


def test_of_equal_credit_the_shortest_comes_first():
    assert kept(episode({"P a b c": 1.0, "P d": 1.0, "P e f": 1.0})) == ["P d", "P e f", "P a b c"]


def test_what_a_trajectory_must_have_earned_can_be_set():
    tree = episode({"P a": 0.4, "P b": 0.6, "S c": None})
    assert kept(tree) == []
    assert kept(tree, min_reward=0.5) == ["P b"]
    assert kept(tree, min_reward=0.4) == ["P b", "P a"]


def test_a_sum_of_rewards_that_is_one_but_for_the_last_bit_has_earned_one():
    assert 0.6 + 0.3 + 0.1 < 1
    assert kept(episode({"P a": 0.6 + 0.3 + 0.1, "P b": 0.99})) == ["P a"]


def test_with_no_reward_asked_for_every_trajectory_that_was_scored_is_kept():
    assert kept(episode({"P a": 0.0, "P b": 0.6, "S c": None}), min_reward=0) == ["P b", "P a"]


@pytest.mark.parametrize("reward", [0.0, None])
@pytest.mark.parametrize("first", ["cheapest", "all"])
def test_a_question_that_no_trajectory_solved_gives_nothing(reward, first):
    tree = episode({"N": reward, "P a": reward, "S b": reward})
    assert kept(tree) == []
    assert chosen(tree, first=first, min_credit=0) == []


def test_a_trajectory_that_ended_before_its_first_decision_is_no_solution():
    tree = episode({"N": 0.0})
    tree.trajectories.append(
        Trajectory(nodes=[], steps=[], answer="", passages=[], stop="answered", rewards={"r": 1.0})
    )
    assert kept(tree) == []


def test_every_action_of_a_kept_trajectory_is_taken_once_with_its_credit():
    taken = select(TREE, "r", SeedsParams(first="all", solutions=9))
    assert {s.node: s.credit for s in taken} == {
        "N": 1.0, "P": 0.75, "b": 1.0, "e": 1.0, "g": 1.0, "h": 1.0, "a": 0.5, "c": 1.0, "S": 0.5, "i": 1.0
    }  # fmt: skip
    assert len(taken) == 10


def test_what_was_not_kept_gives_no_samples():
    assert chosen(TREE, first="all", solutions=2) == ["N", "P", "b", "e", "g"]


def test_actions_no_better_than_their_siblings_are_left_out():
    # a and b: 1/2 and 1, mean 3/4; c and d: 1 and 0; i and j: 1 and 0. e has no siblings, and g and h are equal.
    assert chosen(TREE, first="all", solutions=9, min_advantage=0.25) == ["N", "P", "S", "b", "c", "i"]
    assert chosen(TREE, first="all", solutions=9, min_advantage=0.3) == ["N", "P", "S", "c", "i"]
    assert chosen(TREE, first="all", solutions=9, min_advantage=0.6) == ["N", "P", "S"]


def test_the_mean_of_siblings_counts_each_as_often_as_it_was_drawn():
    tree = episode({"S a": 1.0, "S b": 0.0})
    often = [n.model_copy(update={"merged": 2 if n.id == "a" else 0}) for n in tree.nodes]  # mean 3/4
    assert chosen(tree.model_copy(update={"nodes": often}), min_advantage=0.3) == ["S"]
    assert chosen(tree, min_advantage=0.3) == ["S", "a"]


def test_siblings_without_credit_do_not_count():
    tree = episode({"S a": 1.0, "S b": None, "S c": 0.5})  # mean 3/4
    assert chosen(tree, first="all", min_advantage=0.25) == ["S", "a"]
    assert chosen(tree, first="all", min_advantage=0.3) == ["S"]


def test_a_first_decision_of_the_policy_s_own_must_be_better_than_its_siblings_too():
    tree = episode({"P a": 1.0, "P b": 0.0, "S c": 1.0}, forced=False)
    assert chosen(tree, min_advantage=0.2) == ["S", "a"]  # S 1 and P 1/2, mean 3/4
    assert chosen(tree) == ["P", "S", "a", "c"]


def test_actions_of_low_expected_reward_are_left_out():
    assert chosen(TREE, first="all", solutions=9, min_credit=0.6) == ["N", "P", "S", "b", "c", "e", "g", "h", "i"]
    assert chosen(TREE, first="all", solutions=9, min_credit=0.8) == ["N", "P", "S", "b", "c", "e", "g", "h", "i"]
    lucky = episode({"S a": 1.0, "S b": 0.0, "S c": 0.0})  # the credit of S is 1/3
    assert chosen(lucky) == ["S", "a"]  # but a first decision is compared with its siblings alone
    assert chosen(lucky, min_credit=0.3) == ["S", "a"]


def test_of_the_first_decisions_that_led_to_a_solution_only_the_cheapest_is_kept():
    tree = episode({"N": 0.0, "P a b": 1.0, "S c": 1.0, "S d": 0.0})  # credits 0, 1, 1/2
    assert chosen(tree) == ["S", "a", "b", "c"]
    assert chosen(tree, first="all") == ["P", "S", "a", "b", "c"]
    assert chosen(episode({"P a b": 1.0, "S c": 1.0, "N": 1.0})) == ["N", "a", "b", "c"]
    assert chosen(episode({"P a b": 1.0, "S c": 1.0, "N": 0.0})) == ["S", "a", "b", "c"]
    assert chosen(episode({"P a b": 1.0, "S c": 0.0, "N": 0.0})) == ["P", "a", "b"]


def test_of_equally_cheap_first_decisions_the_one_with_more_credit_is_kept():
    assert chosen(episode({"S1 a": 1.0, "S1 b": 0.0, "S2 c": 1.0, "S2 d": 1.0})) == ["S2", "a", "c", "d"]


def test_nodes_without_token_ids_are_chosen_too_for_a_teacher_s_are_written_anew():
    tree = episode({"S a": 1.0})
    tree.nodes[1].completion_ids = []
    assert chosen(tree) == ["S", "a"]


def sample(id: str, role: str = "filter", kind: str = "Keep", question: str = "q") -> Sample:
    return Sample(
        episode="k", question=question, node=id, group="g", role=role, kind=kind, depth=1, forced=False,
        prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.5,), temperature=1.0, grammar=None, credit=1.0,
    )  # fmt: skip


def batch(**sizes: int) -> list[Sample]:
    return [sample(f"{role}{i}", role) for role, size in sizes.items() for i in range(size)]


def roles(rows: list[Sample]) -> dict[str, int]:
    return dict(Counter(s.role for s in rows))


def test_a_role_that_has_more_than_its_share_is_thinned_out():
    assert roles(balance(batch(decide=10, filter=90), 0.75, 0)) == {"decide": 10, "filter": 30}
    assert roles(balance(batch(decide=10, filter=90, router=10), 0.5, 0)) == {"decide": 10, "filter": 20, "router": 10}


def test_what_is_in_balance_stays_as_it_is():
    for rows, share in ((batch(a=3, b=1), 0.75), (batch(a=50), 0.1), (batch(a=99, b=1), 1.0), ([], 0.5)):
        assert balance(rows, share, 0) == rows


def test_a_role_with_exactly_its_share_keeps_all():
    assert roles(balance(batch(a=3, b=2), 0.6, 0)) == {"a": 3, "b": 2}


def test_small_shares_of_three_roles_hold_too():
    thinned = roles(balance(batch(a=100, b=100, c=20), 0.4, 0))  # 80, 66 and 20
    assert max(thinned.values()) <= 0.4 * sum(thinned.values())


sizes = st.dictionaries(st.sampled_from(["decide", "filter", "router"]), st.integers(1, 40), min_size=2)


@given(sizes, st.floats(0.5, 1.0), st.integers(0, 100))
def test_no_role_has_more_than_its_share_and_nothing_else_changes(sizes, share, seed):
    rows = batch(**sizes)
    thinned = balance(rows, share, seed)
    assert max(roles(thinned).values()) <= share * len(thinned) + 1e-9
    assert [s for s in rows if s in thinned] == thinned  # in their order
    whole = roles(rows)
    cut = {role for role in whole if roles(thinned)[role] < whole[role]}
    assert len(cut) <= 1
    assert thinned == balance(rows, share, seed)


def test_no_kind_of_first_decision_has_more_than_its_share():
    kinds = ["Plan"] * 30 + ["Search"] * 10
    drawn = [dataclasses.replace(sample(str(i), "router", kind), forced=True) for i, kind in enumerate(kinds)]
    assert Counter(s.kind for s in balance(drawn, 0.5, 0)) == {"Plan": 10, "Search": 10}


def test_first_decisions_of_one_kind_all_stay():
    drawn = [dataclasses.replace(sample(str(i), "router", "Ask"), forced=True) for i in range(40)]
    assert balance(drawn, 0.5, 0) == drawn


def test_which_are_left_out_depends_on_the_seed_alone():
    rows = batch(a=10, b=90)
    drawn = [tuple(s.node for s in balance(rows, 0.5, seed)) for seed in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [tuple(s.node for s in balance(rows, 0.5, seed)) for seed in range(5)]


def test_labelled_selections_all_stay_whatever_a_noisy_oracle_took_there():
    marks = Marks(positions=(5, 9), many=True, taken=(0,), right=((0,),))
    kinds = ["Subquestions"] * 36 + ["Answer"] * 4
    states = [
        dataclasses.replace(sample(str(i), "planner", kind), forced=True, marks=marks) for i, kind in enumerate(kinds)
    ]
    assert balance(states, 0.5, 0) == states


def test_states_where_several_kinds_are_right_fill_the_share_of_none():
    kinds = ["Plan"] * 10 + ["Search"] * 2 + [""] * 5
    states = [dataclasses.replace(sample(str(i), "router", kind), forced=True) for i, kind in enumerate(kinds)]
    assert Counter(s.kind for s in balance(states, 0.5, 0)) == {"Plan": 2, "Search": 2, "": 5}


def choice(kinds: list[str], right: list[list[int]]) -> Node:
    """A first decision at marks in which a noisy oracle has taken the first option."""
    marked = Marked(options=["a", "b"], many=False, kinds=kinds, taken=[0], positions=[1, 2], right=right)
    taken = {"type": kinds[0] if kinds else "Search"}
    return node("R", None, 1, forced=True).model_copy(update={"marked": marked, "action": taken})


@pytest.mark.parametrize(
    ("kinds", "right", "kind"),
    [
        (["Search", "Plan"], [[1]], "Plan"),
        (["Search", "Plan"], [[0]], "Search"),
        (["Search", "Plan"], [[0], [1]], ""),
        ([], [[1]], "Search"),
    ],
    ids=["the other one", "the one taken", "both", "a record of before, which has no kinds"],
)
def test_a_labelled_state_counts_as_the_kind_that_is_right_there(tiny_model, kinds, right, kind):
    tree = episode({"R": 1.0}).model_copy(update={"nodes": [choice(kinds, right)]})
    (found,) = labelled([tree], Vocabulary(tiny_model, None))
    assert found.kind == kind and found.forced and found.marks.taken == tuple(right[0])


def test_a_state_that_a_teacher_has_read_is_laid_out_in_the_proxy_s_tokens(tiny_model):
    own = Vocabulary(tiny_model, None)
    lines = ("a town", "a river")
    read = choice([], [[1]]).model_copy(
        update={"prompt": [("user", "Which?\n" + listed(lines))], "prompt_ids": [1, 2, 3], "logprobs": [-0.5]}
    )
    read = read.model_copy(update={"marked": read.marked.model_copy(update={"options": list(lines)})})
    tree = episode({"R": 1.0}).model_copy(update={"nodes": [read]})
    request = Request(prompt=(("user", "Which?\n"),), max_tokens=1, options=lines)
    ids, positions = own.encode_options(request)
    (kept,) = labelled([tree], own)
    assert kept.prompt_ids == (1, 2, 3) and kept.marks.positions == (1, 2)
    (anew,) = labelled([tree], own, by_proxy=False)
    assert anew.prompt_ids == ids and anew.marks.positions == positions
    (chosen,) = for_proxy(select(tree, "r", SeedsParams()), [tree], {}, own)
    assert chosen.prompt_ids == ids and chosen.marks.positions == positions and chosen.marks.taken == (0,)


def test_the_dialogue_of_a_role_without_examples_stays_in_its_samples(tiny_model):
    own = Vocabulary(tiny_model, None)
    turns = [("system", "You plan."), ("user", "Question: where?"), ("assistant", "plan"), ("user", "Plan: look")]
    begun = node("R", None, 1, forced=True).model_copy(update={"prompt": turns})
    tree = episode({"R": 1.0}).model_copy(update={"nodes": [begun]})
    (kept,) = for_proxy(select(tree, "r", SeedsParams()), [tree], {begun.role: 0}, own)
    assert kept.prompt_ids == own.encode(Request(prompt=tuple(turns), max_tokens=1))


def test_counts():
    rows = [sample("1"), sample("2", "router", "Plan"), sample("3", "router", "Search"), sample("4", question="p")]
    assert counts(rows) == {
        "samples": 4,
        "questions": 2,
        "roles": {"filter": 2, "router": 2},
        "kinds": {"filter Keep": 2, "router Plan": 1, "router Search": 1},
    }
    assert counts([]) == {"samples": 0, "questions": 0, "roles": {}, "kinds": {}}


EXAMPLES = tuple({"x": f"question {i}", "output": f"answer {i}"} for i in range(4))


@pytest.mark.parametrize("system", ["", "You are {x}."])
@given(shots=st.integers(0, 6), examples=st.integers(0, 4), x=st.text())
def test_without_examples_a_prompt_is_as_if_it_had_been_made_without(system, shots, examples, x):
    prompt = Prompt("p", system, "Q: {x}", EXAMPLES[:examples])
    assert without_shots(prompt.messages({"x": x}, shots=shots), shots) == prompt.messages({"x": x})


def test_no_messages_stay_no_messages():
    assert without_shots([], 3) == ()


@pytest.fixture(scope="module")
def vocabulary(tiny_model) -> Vocabulary:
    return Vocabulary(tiny_model, None)


SAID_BY = ("router", "decide", "filter")
SAID = {
    "Choose one": "[Planning]",
    "Facts so": "Action: [Retrieval] Bhutan currency",
    "Write Action": "Action: [1]",
}


async def sampled(shots: int) -> Episode:
    """One trajectory of a sampler with examples, on an engine whose token ids are another tokenizer's."""
    engine = ScriptedEngine(lambda prompt, rng: next((t for s, t in SAID.items() if s in prompt), "ngultrum"))
    passages = [Passage("p", "Bhutan", "pays in ngultrum")]
    backends = Backends(llm=engine, proxy=engine, retriever=ListRetriever(passages))
    system = build("c3po", {"shots": shots, "max_depth": 4})
    grown = await Tree(Question("q", "What does Bhutan pay with?"), system, backends, exploration=GREEDY).grow()
    for trajectory in grown.trajectories:
        trajectory.rewards = {"r": 1.0}
    return grown


@pytest.mark.parametrize("shots", [0, 1, 2, 3, 9])
async def test_the_proxy_sees_the_prompts_without_examples_whatever_the_sampler_saw(vocabulary, shots):
    shown, plain = await sampled(shots), await sampled(0)
    prompts = {n.role: n.prompt for n in plain.nodes}
    rewritten = for_proxy(select(shown, "r", SeedsParams()), [shown], dict.fromkeys(prompts, shots), vocabulary)
    assert [s.role for s in rewritten] == ["router", "decide", "filter"]
    for row in rewritten:
        assert row.prompt_ids == vocabulary.encode(Request(prompt=tuple(prompts[row.role]), max_tokens=1))
    if shots:
        assert any(len(n.prompt) > len(prompts[n.role]) for n in shown.nodes)


async def test_the_action_is_in_the_proxy_s_own_tokens_and_ends_with_the_end_of_sequence(vocabulary):
    shown = await sampled(1)
    before = select(shown, "r", SeedsParams())
    assert before
    texts = {n.id: n.text for n in shown.nodes}
    for old, new in zip(before, for_proxy(before, [shown], dict.fromkeys(SAID_BY, 1), vocabulary), strict=True):
        assert new.completion_ids[-1] == 2  # <|im_end|>
        assert new.completion_ids[:-1] == vocabulary.tokenize(texts[old.node])
        assert vocabulary.decode(new.completion_ids) == texts[old.node]
        assert new.logprobs == ()  # of another model, and of another prompt
        untouched = {f.name: getattr(old, f.name) for f in dataclasses.fields(old)}
        untouched |= {n: getattr(new, n) for n in ("prompt_ids", "completion_ids", "logprobs")}
        assert dataclasses.asdict(new) == dataclasses.asdict(Sample(**untouched))


async def test_the_rewritten_actions_are_ones_that_the_grammar_allows(vocabulary):
    shown = await sampled(1)
    rewritten = for_proxy(select(shown, "r", SeedsParams()), [shown], dict.fromkeys(SAID_BY, 1), vocabulary)
    assert rewritten
    for row in rewritten:
        assert isinstance(row.grammar, Constraint)
        matcher = vocabulary.matcher(row.grammar)
        assert all(matcher.accept_token(token) for token in row.completion_ids)
        assert matcher.is_terminated()

"""The heart: one mechanism forks trees, joins parallel branches, and replays after a crash."""

import random
from dataclasses import dataclass, replace

import pytest
from examples import examples
from fakes import ListRetriever, ScriptedEngine
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineFault, RetrieverFault, UserError
from dragoman.core.types import Passage, Question
from dragoman.rollout.backends import Backends
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import TREE, Exploration
from dragoman.rollout.tree import Tree
from dragoman.systems.base import Ask, Outcome, Role, StopReason, System
from dragoman.systems.grammar import Form, Line, OneOf
from dragoman.systems.prompts import Prompt

QUESTION = Question("q1", "Which way?", ("left",))


@dataclass(frozen=True)
class Left:
    pass


@dataclass(frozen=True)
class Right:
    pass


@dataclass(frozen=True)
class Say:
    word: str


def role(name: str, grammar) -> Role:
    prompt = Prompt(name, "", "role {name}, so far: {past}")
    return Role(name, prompt, lambda past: grammar, lambda past: {"name": name, "past": past}, max_tokens=8)


TURN = role("turn", OneOf(Form(Left, "left"), Form(Right, "right")))
WORD = role("word", Form(Say, "say {word}", word=Line()))
ASK = Ask("answer", Prompt("answer", "", "answer after {past}"), lambda past: {"past": past}, max_tokens=8)


@dataclass(frozen=True)
class Walk(System):
    """Takes `steps` turns, then answers with the way it went."""

    steps: int = 3
    roles = (TURN,)

    async def run(self, question, ctx):
        past = ""
        for _ in range(self.steps):
            past += "L" if isinstance(await ctx.act(TURN, past=past), Left) else "R"
        return Outcome(await ctx.ask(ASK, past=past))


@dataclass(frozen=True)
class Fan(System):
    """Asks two branches at once, then decides on what they said."""

    roles = (TURN, WORD)

    async def run(self, question, ctx):
        async def branch(name, c):
            return (await c.act(WORD, past=name)).word

        words = await ctx.parallel({n: lambda c, n=n: branch(n, c) for n in ("a", "b")})
        last = await ctx.act(TURN, past=str(words))
        return Outcome(f"{words['a']} {words['b']} {type(last).__name__}")


def turns(prompt: str, rng: random.Random) -> str:
    if prompt.splitlines()[-1].startswith("answer"):
        return prompt.split()[-1]
    if "say" in prompt:
        return f"say {rng.choice('wxyz')}{rng.randrange(10**6)}"
    # a grammar narrowed to one form is a forced action
    return next((w for w in ("left", "right") if prompt.startswith(w)), rng.choice(["left", "right"]))


def backends(script=turns, passages=(), **kwargs) -> Backends:
    engine = ScriptedEngine(script, **kwargs)
    return Backends(llm=engine, proxy=engine, retriever=ListRetriever(passages))


def timeless(node):
    return node.model_copy(update={"started": 0, "seconds": 0})


async def test_one_greedy_run_is_one_trajectory():
    episode = await Tree(QUESTION, Walk(), backends()).grow()
    (trajectory,) = episode.trajectories
    assert len(episode.nodes) == 3
    assert [n.depth for n in episode.nodes] == [1, 2, 3]
    assert [n.parent for n in episode.nodes] == [None, episode.nodes[0].id, episode.nodes[1].id]
    assert trajectory.nodes == [n.id for n in episode.nodes]
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.answer == "".join("L" if n.text == "left" else "R" for n in episode.nodes)
    assert all(n.completion_ids == list(n.text.encode()) for n in episode.nodes)


async def test_the_first_decision_is_forced_over_all_kinds():
    episode = await Tree(QUESTION, Walk(1), backends(), exploration=TREE).grow()
    assert sorted(t.answer for t in episode.trajectories) == ["L", "R"]
    assert all(n.forced for n in episode.nodes)


async def test_a_forced_text_that_is_no_action_keeps_the_kind_that_it_was_forced_to():
    script = {"left": "lef", "right": "right"}
    own = backends(lambda prompt, rng: script.get(prompt.splitlines()[0], "R"))
    episode = await Tree(QUESTION, Walk(1), own, exploration=TREE).grow()
    assert [(n.text, n.kind, n.forced_to) for n in episode.nodes] == [("lef", "", "Left"), ("right", "Right", "Right")]
    free = await Tree(QUESTION, Walk(1), backends(), exploration=Exploration(breadth=(1,), force=0)).grow()
    assert [n.forced_to for n in free.nodes] == [""]


async def test_a_kind_that_has_two_forms_is_forced_once():
    says = [Form(Say, f"{verb} {{word}}", word=Line()) for verb in ("say", "cry")]

    class Speaks(Walk):
        async def run(self, question, ctx):
            return Outcome(str(await ctx.act(role("turn", OneOf(Form(Left, "left"), *says)), past="")))

    own = backends(lambda prompt, rng: "left" if prompt.startswith("left") else f"cry {rng.randrange(10**6)}")
    episode = await Tree(QUESTION, Speaks(), own, exploration=Exploration(breadth=(2,))).grow()
    # two draws of each of two kinds, of which the first has one text alone
    assert [(n.forced_to, n.draws) for n in episode.nodes] == [("Left", 2), ("Say", 1), ("Say", 1)]


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 5))
@examples()
async def test_a_tree_is_sound_whatever_is_drawn(seed, steps):
    episode = await Tree(QUESTION, Walk(steps), backends(), exploration=TREE, seed=seed).grow()
    nodes = {n.id: n for n in episode.nodes}
    assert len(nodes) == len(episode.nodes)
    for trajectory in episode.trajectories:  # each is a chain from the root, and answers with its own way
        chain = [nodes[i] for i in trajectory.nodes]
        assert [n.parent for n in chain] == [None, *trajectory.nodes[:-1]]
        assert trajectory.answer == "".join("L" if n.text == "left" else "R" for n in chain)
    ways = [tuple(t.nodes) for t in episode.trajectories]
    assert len(set(ways)) == len(ways)
    assert {n for way in ways for n in way} == set(nodes)
    for node in episode.nodes:  # siblings differ: equal draws were merged
        twins = [n for n in episode.nodes if n.point == node.point and n.text == node.text]
        assert twins == [node]
    widest = {1: 2, 2: 4, 3: 8, 4: 16}.get(steps, 16)
    assert 2 <= len(ways) <= widest


async def test_each_call_is_made_once_for_the_whole_tree():
    w = backends()
    episode = await Tree(QUESTION, Walk(4), w, exploration=TREE).grow()
    prompts = [(r.prompt, r.grammar) for r in w.proxy.requests]
    assert len(prompts) == len(set(prompts))
    points = {n.point for n in episode.nodes}
    # the root sends one request for each forced kind, every other point one, and every leaf asks for its answer
    assert len(prompts) == len(points) + 1 + len(episode.calls)


async def test_parallel_branches_fork_the_same_whatever_the_order_of_completion():
    grown = []
    for delay in range(5):
        w = backends(jitter=random.Random(delay))
        episode = await Tree(QUESTION, Fan(), w, exploration=Exploration(breadth=(2,), force=0)).grow()
        grown.append(
            (
                sorted((n.id, n.parent, tuple(n.joins), n.text) for n in episode.nodes),
                sorted((tuple(t.nodes), t.answer) for t in episode.trajectories),
            )
        )
    assert all(g == grown[0] for g in grown)
    words = [n for n in episode.nodes if n.role == "word"]
    assert len(words) == 4  # two branches, two draws each
    last = [n for n in episode.nodes if n.role == "turn"]
    assert all(len(n.joins) == 2 for n in last)


async def test_only_the_role_that_is_named_forks_whatever_its_depth():
    exploration = Exploration(breadth=(1,), breadth_of={"turn": 4}, force=0)
    episode = await Tree(QUESTION, Fan(), backends(), exploration=exploration).grow()
    words, turns = ([n for n in episode.nodes if n.role == role] for role in ("word", "turn"))
    assert len(words) == 2  # one in each branch
    assert sum(1 + n.merged for n in turns) == 4 and len({n.point for n in turns}) == 1


async def test_in_a_real_tree_a_branch_earns_nothing_by_what_the_branch_beside_it_did():
    episode = await Tree(QUESTION, Fan(), backends(), exploration=Exploration(breadth=(3,), force=0)).grow()
    taken = next(t.answer.split()[1] for t in episode.trajectories)
    for t in episode.trajectories:
        t.rewards = {"b": float(t.answer.split()[1] == taken)}
    credits = credit(episode, "b")
    a, b = (sorted(credits[n.id] for n in episode.nodes if n.prompt[-1][1].endswith(f": {name}")) for name in "ab")
    assert len(a) == len(b) == 3 and a[0] == a[-1] and b in ([0, 0, 1], [0, 1, 1])


@dataclass(frozen=True)
class Fans(System):
    """Branches after branches, and within them, with no decision in between."""

    roles = (WORD,)

    async def run(self, question, ctx):
        async def leaf(name, c):
            return (await c.act(WORD, past=name)).word

        async def pair(name, c):
            return await c.parallel({n: lambda c, n=n: leaf(name + n, c) for n in "xy"})

        for turn in "ab":
            await ctx.parallel({"pair": lambda c, t=turn: pair(t, c), "one": lambda c, t=turn: leaf(t, c)})
        return Outcome((await ctx.act(WORD, past="end")).word)


async def test_joins_reach_over_branches_in_which_nothing_was_decided():
    episode = await Tree(QUESTION, Fans(), backends()).grow()
    asked = {n.id: n.prompt[-1][1].split()[-1] for n in episode.nodes}
    joins = {asked[n.id]: {asked[i] for i in n.joins} for n in episode.nodes}
    first = {"ax", "ay", "a"}
    assert joins == {
        "ax": set(),
        "ay": set(),
        "a": set(),
        "bx": first,
        "by": first,
        "b": first,
        "end": {"bx", "by", "b"},
    }


async def test_a_kill_at_any_call_then_a_resume_gives_the_same_tree_and_repeats_nothing():
    whole_world = backends()
    whole = await Tree(QUESTION, Walk(3), whole_world, exploration=TREE).grow()
    total = len(whole_world.proxy.requests)
    calls: list[tuple[str, object]] = []
    await Tree(QUESTION, Walk(3), backends(), exploration=TREE, remember=lambda i, v: calls.append((i, v))).grow()
    for killed_after in range(len(calls) + 1):
        recorded = dict(calls[:killed_after])
        sent = sum(len(v["results"]) if "results" in v else 1 for v in recorded.values())
        w = backends()
        resumed = await Tree(QUESTION, Walk(3), w, exploration=TREE, recorded=recorded).grow()
        assert [timeless(n) for n in resumed.nodes] == [timeless(n) for n in whole.nodes]
        assert resumed.trajectories == whole.trajectories
        assert len(w.proxy.requests) == total - sent


async def test_the_seconds_of_a_resumed_tree_are_those_of_both_runs():
    calls: dict[str, dict] = {}
    await Tree(QUESTION, Walk(3), backends(), exploration=TREE, remember=calls.__setitem__).grow()
    first, *others = calls
    recorded = {first: calls[first] | {"started": 10.0, "seconds": 60.0}}
    recorded |= {id: calls[id] | {"started": 50.0, "seconds": 50.0} for id in others}  # 20 s of them at the same time
    resumed = await Tree(QUESTION, Walk(3), backends(), exploration=TREE, recorded=recorded).grow()
    assert 90 <= resumed.seconds < 100


async def test_a_text_that_is_no_action_ends_its_trajectory_and_no_other():
    def script(prompt, rng):
        return "sideways" if prompt.endswith("so far: L") else turns(prompt, rng)

    episode = await Tree(QUESTION, Walk(2), backends(script), exploration=TREE).grow()
    stops = {t.stop for t in episode.trajectories}
    assert stops == {StopReason.INVALID_ACTION, StopReason.ANSWERED}
    bad = next(n for n in episode.nodes if n.text == "sideways")
    assert (bad.action, bad.stop, bad.merged) == (None, StopReason.INVALID_ACTION, 1)
    ended = next(t for t in episode.trajectories if t.stop is StopReason.INVALID_ACTION)
    assert ended.answer == "" and "sideways" in ended.error


async def test_an_engine_that_dies_in_one_branch_leaves_the_others_sound():
    def script(prompt, rng):
        return EngineFault("gone") if prompt.endswith("so far: L") else turns(prompt, rng)

    episode = await Tree(QUESTION, Walk(2), backends(script), exploration=TREE).grow()
    by_stop = {t.stop: t for t in episode.trajectories}
    assert by_stop[StopReason.ENGINE_FAULT].answer is None
    assert by_stop[StopReason.ENGINE_FAULT].error == "gone"
    assert by_stop[StopReason.ANSWERED].answer.startswith("R")
    assert episode.faulty


@pytest.mark.parametrize(
    ("error", "stop"),
    [(RetrieverFault("no index"), StopReason.RETRIEVER_FAULT), (ZeroDivisionError("oops"), StopReason.SYSTEM_FAULT)],
)
async def test_a_fault_is_a_record_with_a_reason(error, stop):
    @dataclass(frozen=True)
    class Broken:
        roles = ()

        async def run(self, question, ctx):
            raise error

    (trajectory,) = (await Tree(QUESTION, Broken(), backends()).grow()).trajectories
    assert trajectory.stop is stop and str(error) in trajectory.error and trajectory.answer is None


async def test_bad_input_stops_the_run_instead():
    @dataclass(frozen=True)
    class Misused:
        roles = ()

        async def run(self, question, ctx):
            raise UserError("k must be at least 1")

    with pytest.raises(UserError, match="k must be"):
        await Tree(QUESTION, Misused(), backends()).grow()


async def test_steps_are_recorded_in_the_order_in_which_they_were_made():
    @dataclass(frozen=True)
    class Look:
        roles = (TURN,)

        async def run(self, question, ctx):
            await ctx.act(TURN, past="")
            found = await ctx.retrieve("left turn", k=1)
            return Outcome("done", tuple(found))

    passages = [Passage("p1", "Left", "a left turn"), Passage("p2", "Right", "a right turn")]
    episode = await Tree(QUESTION, Look(), backends(passages=passages)).grow()
    (call,) = episode.calls
    assert (call.kind, call.output) == ("search", ["p1"])
    assert episode.trajectories[0].steps == [episode.nodes[0].id, call.id]
    assert episode.trajectories[0].passages == ["p1"]


@dataclass(frozen=True)
class Poll(System):
    """Asks the LLM for several answers to one prompt, and gives all of them."""

    asks: tuple[Ask, ...]

    async def run(self, question, ctx):
        return Outcome("|".join([text for ask in self.asks for text in await ctx.ask_all(ask, past="")]))


async def test_an_ask_that_samples_gives_all_its_texts_and_depends_on_its_seed_alone():
    def poll(seed: int, *asks: Ask) -> Tree:
        llm = ScriptedEngine(lambda prompt, rng: str(rng.random()))
        return Tree(QUESTION, Poll(asks), Backends(llm=llm, proxy=llm, retriever=ListRetriever([])), seed=seed)

    three = replace(ASK, temperature=1.0, n=3)
    once, again, other = [
        (await tree.grow()).trajectories[0].answer.split("|")
        for tree in (poll(0, three, three), poll(0, three, replace(three, seed=1)), poll(1, three, three))
    ]
    assert len(set(once)) == 3 and once[:3] == once[3:] == again[:3]
    assert not set(once) & {*again[3:], *other}
    tree = poll(0, ASK, three)
    first, second = sorted((await tree.grow()).calls, key=lambda call: isinstance(call.output, list))
    assert isinstance(first.output, str) and second.output == once[:3]


@pytest.mark.parametrize("change", [{"n": 0}, {"n": 2}, {"temperature": -1.0}])
def test_an_ask_that_cannot_be_drawn_is_refused(change):
    with pytest.raises(ValueError, match="ask 'answer': cannot draw"):
        replace(ASK, **change)

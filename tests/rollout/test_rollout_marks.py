"""Trees whose decisions are scored at marks, on the real engine and a tiny model."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from toy import KNOWN, QUESTIONS, WORDS, AtMarks, Left, Pick, Right, ToyRuntime, TwoArms

from dragoman.core.types import Question
from dragoman.evaluation.ask import show_step
from dragoman.rewards import Reward
from dragoman.rollout import decisions
from dragoman.rollout.choosing import Taken
from dragoman.rollout.credit import credit
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.record import Episode, Marked, Node
from dragoman.rollout.samples import Marks, read_samples, samples, write_samples
from dragoman.rollout.tree import Tree
from dragoman.systems.base import Outcome, StopReason, System
from dragoman.systems.options import Choice, listed
from dragoman.training.actor import Actor
from dragoman.training.algorithms.ppo import tree_values
from dragoman.training.batch import AllowedTokens, lay_out
from dragoman.training.seeds import select
from dragoman.training.settings import SeedsParams


@pytest.fixture
async def grow(tiny_model):
    runtime = ToyRuntime()

    async def grown(question: Question = QUESTIONS[0], system: System = AtMarks(), **exploration) -> Episode:
        _, backends = runtime.open(f"toy@{tiny_model}")
        settings = GREEDY.model_copy(update=exploration)
        tree = Tree(question, system, backends, exploration=settings, reward=Reward.of("cover_em"))
        return await tree.grow()

    yield grown
    await runtime.close()


async def test_a_greedy_run_takes_the_best_option_and_records_all(grow):
    episode = await grow()
    choice, selection = episode.nodes
    assert choice.marked.options == ["left arm", "right arm"]
    assert choice.marked.kinds == ["Left", "Right"] and selection.marked.kinds == []
    assert choice.marked.taken == [choice.marked.logits.index(max(choice.marked.logits))]
    assert choice.text == f"[{choice.marked.options[choice.marked.taken[0]]}]"
    assert selection.marked.taken == [i for i, z in enumerate(selection.marked.logits) if z > 0]
    assert choice.prompt[0][1].endswith("\n" + listed(choice.marked.options))
    assert choice.completion_ids == [] and choice.prompt_tokens == len(choice.prompt_ids) > 0


async def test_a_bias_shifts_logits_and_with_them_what_is_taken_and_how_likely_it_was(grow):
    plain = await grow()
    biased = await grow(system=AtMarks(arm_bias=(0.0, 50.0), pick_bias=(50.0, -50.0, 50.0)))
    for node, same, bias in zip(biased.nodes, plain.nodes, ([0.0, 50.0], [50.0, -50.0, 50.0]), strict=True):
        assert node.marked.bias == bias and same.marked.bias == []
        assert node.marked.logits == pytest.approx([z + b for z, b in zip(same.marked.logits, bias, strict=True)])
    assert biased.nodes[0].marked.taken == [1] and biased.nodes[1].marked.taken == [0, 2]
    assert [n.probability for n in biased.nodes] == pytest.approx([1, 1])


async def test_the_trainer_finds_a_biased_action_as_likely_as_the_rollout_did(grow, tiny_model):
    episode = await grow(system=AtMarks((1.0, -0.5), (0.5, -2.0, 1.0)), breadth=(2, 8), temperature=0.7)
    drawn = samples(episode, "cover_em")
    actor = Actor(tiny_model, None, torch.device("cpu"), bf16=False)
    (batch,) = lay_out(drawn, range(len(drawn)), AllowedTokens(tiny_model), 100_000)
    with torch.no_grad():
        found = actor(batch, temperature=0.7).logprobs
    for place, row in zip(batch.actions.tolist(), found.tolist(), strict=True):
        logprobs = drawn[place].logprobs
        assert row[: len(logprobs)] == pytest.approx(logprobs, abs=1e-3)


async def test_siblings_are_different_actions_with_their_exact_probabilities(grow):
    episode = await grow(breadth=(2, 8), temperature=1.0)
    arms = [n for n in episode.nodes if n.role == "choose"]
    assert {n.action["type"] for n in arms} == {"Left", "Right"}
    assert sum(n.probability for n in arms) == pytest.approx(1)
    for arm in arms:
        picks = [n for n in episode.nodes if n.parent == arm.id]
        assert len({n.text for n in picks}) == 8  # all subsets of three words
        assert sum(n.probability for n in picks) == pytest.approx(1)
        assert all(n.merged == 0 and len(n.logprobs) == 3 for n in picks)
    assert len(episode.trajectories) == 16
    assert [t.rewards["cover_em"] for t in episode.trajectories].count(1.0) == 1


async def test_every_kind_is_tried_where_it_is_forced(grow):
    episode = await grow(breadth=(1,), force=1, temperature=1.0)
    assert {n.action["type"] for n in episode.nodes if n.depth == 1} == {Left.__name__, Right.__name__}
    assert all(n.forced for n in episode.nodes if n.depth == 1)
    assert not any(n.forced for n in episode.nodes if n.depth == 2)


@dataclass(frozen=True)
class OneKind(AtMarks):
    """Picks one word, and is right with the pear: it has options of one kind alone."""

    @property
    def roles(self):
        return (self.pick,)

    @property
    def pick(self):
        words = tuple((word, Pick((number,))) for number, word in enumerate(WORDS, start=1))
        return replace(super().pick, options=lambda question: Choice(f"{question}\n", words))

    async def run(self, question, ctx):
        return Outcome("right" if await ctx.act(self.pick, question=question.question) == Pick((2,)) else "wrong")


@pytest.fixture
async def one_kind(grow, monkeypatch):
    """The right word of probability .3 and a wrong one of .2, each of which was to be drawn with .5: shares of .6 and .4."""
    pear, apple = (Taken((place,), (math.log(p),), 0.5) for place, p in ((1, 0.3), (0, 0.2)))
    monkeypatch.setattr(decisions, "draw", lambda *_: [pear, apple])
    return await grow(system=OneKind(), breadth=(2,), force=1, temperature=1.0)


async def test_options_of_one_kind_are_not_forced_and_each_is_compared_with_what_is_left_of_its_share(one_kind):
    assert [n.forced for n in one_kind.nodes] == [False, False]
    # rewards of 1 and 0, of mean .6; beside the pear .4 of .7 are worth 0, beside the apple .6 of .8 are worth 1
    values = tree_values(samples(one_kind, "cover_em"))
    assert values.tolist() == pytest.approx([1 - (1 - 0.6) / 0.7, 0.6 / 0.8])


@pytest.mark.parametrize(("least", "kept"), [(0.3, ["[2]"]), (0.5, [])])
async def test_a_first_option_of_one_kind_must_be_better_than_its_siblings(one_kind, least, kept):
    chosen = {sample.node for sample in select(one_kind, "cover_em", SeedsParams(min_advantage=least))}
    assert [n.text for n in one_kind.nodes if n.id in chosen] == kept  # its advantage is 1 - .6


async def test_an_oracle_says_what_is_right_in_the_states_that_the_policy_comes_to(grow):
    episode = await grow(KNOWN[0], label=True)
    assert [n.marked.right for n in episode.nodes] == [[[1]], [[1]]]
    assert not episode.nodes[0].forced and episode.nodes[0].prompt_ids
    assert all(n.marked.right == [] for n in (await grow(QUESTIONS[0], label=True)).nodes)


async def test_an_oracle_that_acts_asks_no_model(grow):
    episode = await grow(KNOWN[0], oracle=True)
    assert [n.text for n in episode.nodes] == ["[right arm]", "[2]"]
    assert episode.tokens == 0 and episode.trajectories[0].rewards["cover_em"] == 1.0


async def test_a_noisy_oracle_errs_but_still_says_what_is_right(grow):
    taken = []
    for i in range(20):
        episode = await grow(Question(f"n{i}", "Which?", ("right",), supporting_ids=("p",)), oracle=True, noise=0.5)
        assert [n.marked.right for n in episode.nodes] == [[[1]], [[1]]]
        taken += [tuple(n.marked.taken) for n in episode.nodes]
    assert 10 < taken.count((1,)) < 38
    assert len(set(taken)) > 4


async def test_a_choice_of_one_asks_no_model(tiny_model):
    episode = await _alone(tiny_model)
    assert episode.nodes[0].probability == 1.0 and episode.nodes[0].prompt_ids == []


async def _alone(tiny_model) -> Episode:
    @dataclass(frozen=True)
    class OneArm(TwoArms):
        @property
        def choose(self):
            return replace(super().choose, options=lambda question: Choice(f"{question}\n", (("right arm", Right()),)))

    runtime = ToyRuntime(OneArm())
    system, backends = runtime.open(f"toy@{tiny_model}")
    try:
        return await Tree(QUESTIONS[0], system, backends).grow()
    finally:
        await runtime.close()


async def test_a_tree_that_goes_on_after_a_kill_is_the_same(tiny_model):
    runtime = ToyRuntime(AtMarks())
    system, backends = runtime.open(f"toy@{tiny_model}")
    exploration = Exploration(breadth=(2, 3), temperature=1.0)
    recorded: dict[str, object] = {}
    whole = await Tree(
        QUESTIONS[0], system, backends, exploration=exploration, remember=lambda id, value: recorded.update({id: value})
    ).grow()
    stored = json.loads(json.dumps(recorded))
    await runtime.close()
    again = await Tree(QUESTIONS[0], system, backends, exploration=exploration, recorded=stored).grow()
    assert again.nodes == whole.nodes and again.trajectories == whole.trajectories


async def test_decisions_alone_need_no_answer(c3po_at_marks):
    episode = await c3po_at_marks(answers=False)
    assert episode.trajectories[0].stop is StopReason.NOT_ASKED
    assert episode.trajectories[0].answer is None
    assert not [c for c in episode.calls if c.kind == "ask"]
    unknown = await c3po_at_marks(gold=False, answers=False)  # the answer alone can tell what was right there
    assert [c.name for c in unknown.calls if c.kind == "ask"] == ["answer"]


async def test_decisions_without_an_answer_are_scored_by_a_reward_that_reads_none(c3po_at_marks):
    episode = await c3po_at_marks(reward=Reward.of("2 * gold_recall + gold_precision"), answers=False, breadth=(1, 4))
    rewards = {tuple(t.passages): t.rewards for t in episode.trajectories}
    assert {kept: r["2 * gold_recall + gold_precision"] for kept, r in rewards.items()} == {
        (): 0.0,
        ("p",): 3.0,
        ("q",): 0.0,
        ("p", "q"): 2.5,
    }
    assert all(r["cover_em"] is None and r["f1"] is None for r in rewards.values())
    assert all(value is not None for value in credit(episode, "2 * gold_recall + gold_precision").values())


@pytest.mark.parametrize("setting", ["cover_em", "cover_em + gold_recall"])
async def test_decisions_without_an_answer_have_no_reward_that_reads_it(c3po_at_marks, setting):
    episode = await c3po_at_marks(reward=Reward.of(setting), answers=False)
    assert episode.trajectories[0].rewards == {}


async def test_decisions_without_an_answer_earn_the_shaping_alone(c3po_at_marks):
    reward = Reward.of("cover_em", shaping="2 * gold_recall + gold_precision")
    episode = await c3po_at_marks(reward=reward, answers=False, breadth=(1, 4))
    earned = {tuple(t.passages): t.rewards[reward.shaped_name] for t in episode.trajectories}
    assert earned == {(): 0.0, ("p",): 3.0, ("q",): 0.0, ("p", "q"): 2.5}
    assert all(t.rewards["cover_em"] is None for t in episode.trajectories)


@pytest.fixture
def c3po_at_marks(tiny_model):
    from dragoman.core.types import Passage
    from dragoman.systems import build

    async def grown(*, gold: bool = True, reward: Reward | None = None, **exploration) -> Episode:
        passages = [Passage("p", "Bhutan", "Thimphu is its capital."), Passage("q", "Perth", "A city.")]
        settings = {"decide": "marks", "queries": "names", "roadmap": False, "answer_tokens": 4, "strategy": "Search"}
        runtime = ToyRuntime(build("c3po", settings), passages=passages)
        folder = f"c3po@{tiny_model}"
        system, backends = runtime.open(folder)
        question = Question("q", "Where is Thimphu?", ("Bhutan",), supporting_ids=("p",) if gold else ())
        try:
            explored = GREEDY.model_copy(update={"temperature": 1.0} | exploration)
            return await Tree(question, system, backends, exploration=explored, reward=reward).grow()
        finally:
            await runtime.close()

    return grown


async def test_samples_of_marks_survive_on_disk(grow, tmp_path):
    episode = await grow(KNOWN[0], breadth=(2, 3), temperature=1.0, label=True)
    found = samples(episode, "cover_em")
    assert {s.length for s in found} == {1, 3}
    assert found[0].marks == Marks(
        tuple(episode.nodes[0].marked.positions), False, tuple(episode.nodes[0].marked.taken), ((1,),)
    )
    write_samples(tmp_path / "samples.parquet", found)
    read = read_samples(tmp_path / "samples.parquet")
    assert [x for s in read for x in s.logprobs] == pytest.approx([x for s in found for x in s.logprobs])
    assert [replace(s, logprobs=()) for s in read] == [replace(s, logprobs=()) for s in found]


def test_the_options_of_a_step_are_shown_with_their_probabilities():
    marked = Marked(options=["left arm", "right arm"], many=False, taken=[1], logits=[0.0, math.log(3)])
    assert marked.probabilities == pytest.approx([0.25, 0.75])
    assert marked.model_copy(update={"many": True}).probabilities == pytest.approx([0.5, 0.75])
    assert marked.model_copy(update={"logits": []}).probabilities == []
    node = Node(
        id="n", parent=None, point="p", role="choose", depth=1, prompt=[], prompt_ids=[], completion_ids=[], logprobs=[],
        text="[right arm]", action="x", temperature=0, started=0, seconds=0, prompt_tokens=0, completion_tokens=0, marked=marked,
    )  # fmt: skip
    assert show_step(node).splitlines()[1:] == ["       75%  right arm", "       25%  left arm"]


async def test_an_oracle_may_take_the_place_of_one_role_alone(tiny_model):
    runtime = ToyRuntime(AtMarks())
    system, backends = runtime.open(f"toy@{tiny_model}")
    try:
        episode = await Tree(KNOWN[0], system, replace(backends, oracle_roles=frozenset({"pick"}))).grow()
    finally:
        await runtime.close()
    assert [bool(node.prompt_ids) for node in episode.nodes] == [True, False]
    assert episode.nodes[1].marked.taken == [1]

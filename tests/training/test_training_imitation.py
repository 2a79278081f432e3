"""The warm-up at marks: its loss by hand, what it learns, and what a kill leaves."""

import math
from dataclasses import replace

import pytest
import torch
from toy import KNOWN, AtMarks, Killed, ToyRuntime, training_run

from dragoman.core.errors import Fault, RetrieverFault, UserError
from dragoman.engines.base import Constraint
from dragoman.engines.local import Vocabulary
from dragoman.registry.policy import find_policy
from dragoman.rollout import record
from dragoman.rollout.exploration import GREEDY, Exploration
from dragoman.rollout.samples import Sample, samples
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.training import imitation
from dragoman.training.actor import Actor
from dragoman.training.batch import AllowedTokens, lay_out
from dragoman.training.seeds import labelled
from dragoman.training.settings import AdapterParams, SftParams

SETTINGS = SftParams(
    adapter=AdapterParams(rank=8, alpha=16), lr=0.02, batch_size=4, epochs=4, rounds=1, visits=4, dev_questions=2
)


@pytest.fixture
async def runtime():
    opened = ToyRuntime(AtMarks())
    yield opened
    await opened.close()


async def episodes_of(runtime, tiny_model, folder, exploration: Exploration):
    system, backends = runtime.open(f"toy@{tiny_model}")
    with EpisodeStore(folder) as store:
        return await roll_out(KNOWN, "toy", system, backends, store, exploration=exploration)


@pytest.fixture
async def states(runtime, tiny_model, tmp_path) -> list[Sample]:
    """The oracle's, of a choice and of a selection for each question."""
    oracle = GREEDY.model_copy(update={"oracle": True})
    return labelled(await episodes_of(runtime, tiny_model, tmp_path / "seen", oracle), Vocabulary(tiny_model, None))


def test_the_loss_of_a_choice_is_that_of_any_right_option():
    logprobs = torch.log(torch.tensor([[0.2], [0.3], [0.25]]))
    loss = imitation.imitation_loss(logprobs, torch.tensor([1, 1, 1]), torch.tensor([0, 0, 1]))
    assert float(loss) == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)


def test_the_loss_of_a_selection_is_the_mean_over_its_options():
    logprobs = torch.log(torch.tensor([[0.9, 0.8, 0.5, 1.0]]))
    loss = imitation.imitation_loss(logprobs, torch.tensor([3]), torch.tensor([0]))
    assert float(loss) == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 3)


BIAS = (2.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("role", "forced", "label", "bias", "loss"),
    [
        # the first option alone, of two that the policy finds equal, z = 0
        pytest.param("choose", False, (), BIAS[:2], 0.12693, id="a drawn choice: log(1 + exp(-2))"),
        pytest.param("choose", True, (), BIAS[:2], 0.69315, id="a forced choice: log 2"),
        pytest.param("choose", True, ((0,),), BIAS[:2], 0.69315, id="a label of a choice: log 2"),
        # of three, each in or out by itself
        pytest.param("pick", False, (), BIAS, 0.50441, id="a drawn selection: (log(1 + exp(-2)) + 2 log 2) / 3"),
        pytest.param("pick", False, ((0,),), BIAS, 0.69315, id="a label of a selection: log 2"),
    ],
)
async def test_a_draw_is_learnt_with_its_bias_and_what_the_bias_had_no_part_in_without(
    tiny_model, states, tmp_path, role, forced, label, bias, loss
):
    student = imitation.Student(tiny_model, SETTINGS.model_copy(update={"epochs": 1}), 0, tmp_path / "checkpoint.pt")
    yes, no = student.actor.yes_and_no
    with torch.no_grad():
        student.actor.lm.lm_head.weight[yes] = student.actor.lm.lm_head.weight[no]
    state = next(s for s in states if s.role == role)
    marks = replace(state.marks, taken=(0,), right=label, bias=bias)
    student.learn([replace(state, forced=forced, marks=marks)], 0, lr=0.01)
    assert [row["loss"] for row in student.losses] == [pytest.approx(loss, abs=1e-5)]


async def test_trainer_and_engine_agree_on_what_an_action_at_marks_is_worth(runtime, tiny_model, tmp_path):
    tree = Exploration(breadth=(2, 3), force=0, temperature=0.7)
    found = [
        replace(sample, credit=0.0)
        for episode in await episodes_of(runtime, tiny_model, tmp_path / "seen", tree)
        for sample in samples(replace_rewards(episode), "r")
    ]
    actor = Actor(tiny_model, None, torch.device("cpu"), bf16=False)
    for micro in lay_out(found, range(len(found)), AllowedTokens(tiny_model), 300):
        seen = actor(micro, 0.7)
        for i, logprobs, entropy in zip(micro.actions.tolist(), seen.logprobs, seen.entropy, strict=True):
            n = found[i].length
            torch.testing.assert_close(logprobs[:n], torch.tensor(found[i].logprobs), rtol=1e-3, atol=1e-4)
            assert not logprobs[n:].any() and not entropy[n:].any()
            assert (entropy[:n] > 0).all() and (entropy[:n] <= math.log(2) + 1e-5).all()


def replace_rewards(episode):
    for trajectory in episode.trajectories:
        trajectory.rewards = {"r": 0.0}
    return episode


async def train(runtime, tiny_model, states, out, settings=SETTINGS):
    return await imitation.train(training_run(tiny_model, runtime, out, KNOWN[:2]), states, KNOWN, settings)


@pytest.mark.parametrize("adapter", [SETTINGS.adapter, None], ids=["lora", "full"])
async def test_the_policy_does_what_the_oracle_says(runtime, tiny_model, states, tmp_path, adapter):
    settings = SETTINGS.model_copy(update={"adapter": adapter, "lr": 0.02 if adapter else 0.003, "epochs": 8})
    metrics = await train(runtime, tiny_model, states, tmp_path / "sft", settings)
    assert metrics["dev_reward"] == 1.0 and metrics["samples"] == 12
    assert [row["states"] for row in metrics["rounds"]] == [
        12,
        8 + 4,
    ]  # two states of four visits, a third of the seeds
    assert {p.name for p in (tmp_path / "sft").iterdir()} == {
        "dev", "dev.csv", "loss.csv", "metrics.json", "policies", "policy.json", "started.json", "visited",
    }  # fmt: skip


@pytest.mark.parametrize("saved", [1, 2, 4], ids=["first round", "between rounds", "second round"])
@pytest.mark.slow
async def test_killed_at_any_time_it_comes_to_the_same_policy(
    runtime, tiny_model, states, tmp_path, monkeypatch, saved
):
    monkeypatch.setattr(imitation, "CHECKPOINT_EVERY", 8)
    unbroken = await train(runtime, tiny_model, states, tmp_path / "unbroken")
    original, calls = imitation.Student._save, []

    def save_and_die(self, optimizer):
        original(self, optimizer)
        calls.append(self.done)
        if len(calls) == saved:
            raise Killed

    monkeypatch.setattr(imitation.Student, "_save", save_and_die)
    with pytest.raises(Killed):
        await train(runtime, tiny_model, states, tmp_path / "killed")
    monkeypatch.setattr(imitation.Student, "_save", original)
    resumed = await train(runtime, tiny_model, states, tmp_path / "killed")
    assert resumed == unbroken
    assert (tmp_path / "killed" / "loss.csv").read_text() == (tmp_path / "unbroken" / "loss.csv").read_text()
    left = [tmp_path / "killed" / name for name in ("base", "candidates", imitation.STATES, imitation.CHECKPOINT)]
    for folder in left[:3]:  # as a kill leaves it that comes after the metrics were written
        folder.mkdir()
    left[3].touch()
    assert await train(runtime, tiny_model, states, tmp_path / "killed") == unbroken
    assert not any(path.exists() for path in left)


async def test_a_round_whose_visits_an_outage_has_hit_is_left_to_a_later_try(
    runtime, tiny_model, states, tmp_path, monkeypatch
):
    away = False

    class Away(AtMarks):
        async def run(self, question, ctx):
            if away and question not in KNOWN[:2]:  # the dev questions
                raise RetrieverFault("the index is away")
            return await super().run(question, ctx)

    runtime.system = Away()
    unbroken = await train(runtime, tiny_model, states, tmp_path / "unbroken")
    away = True
    with pytest.raises(Fault, match=r"[2-4] of 4 questions met a fault, the first: the index is away"):
        await train(runtime, tiny_model, states, tmp_path / "hit")
    assert torch.load(tmp_path / "hit" / imitation.CHECKPOINT, weights_only=True)["done"] == [1, 0]
    away = False
    assert await train(runtime, tiny_model, states, tmp_path / "hit") == unbroken


async def test_a_fault_that_is_over_after_a_kill_changes_nothing_of_the_round(
    runtime, tiny_model, states, tmp_path, monkeypatch
):
    monkeypatch.setattr(imitation, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(record, "MOST_FAULTY", 0.5)
    away, asked, learnt = True, [], []

    class Away(AtMarks):
        async def run(self, question, ctx):
            asked.append(question.id)
            if away and question == KNOWN[5]:
                raise RetrieverFault("the index is away")
            return await super().run(question, ctx)

    original = imitation.Student._step

    def step(self, batch, optimizer):
        if self.done == (1, 2) and dies:  # after a checkpoint in the middle of the second round
            raise Killed
        learnt.append(sorted(sample.episode + sample.node for sample in batch))
        return original(self, batch, optimizer)

    monkeypatch.setattr(imitation.Student, "_step", step)
    runtime.system, dies, settings = Away(), False, SETTINGS.model_copy(update={"epochs": 1, "visits": 6})
    unbroken = await train(runtime, tiny_model, states, tmp_path / "unbroken", settings)
    assert [row["states"] for row in unbroken["rounds"]] == [12, 5 * 2 + 4]  # of five visits, and a third of the seeds
    whole, learnt[:], dies = [*learnt], [], True
    with pytest.raises(Killed):
        await train(runtime, tiny_model, states, tmp_path / "killed", settings)
    away, dies, asked[:] = False, False, []
    assert await train(runtime, tiny_model, states, tmp_path / "killed", settings) == unbroken
    assert learnt == whole
    assert set(asked) <= {question.id for question in KNOWN[:2]}  # the dev questions: no state is visited again


async def test_a_run_with_other_settings_learns_nothing_of_what_another_has_kept(
    runtime, tiny_model, states, tmp_path, monkeypatch
):
    original, seen = imitation.Student.learn, []

    def learn(self, states, number, *, lr):
        seen.append((number, len(states)))
        if number == 1 and len(seen) == 2:
            raise Killed
        original(self, states, number, lr=lr)

    monkeypatch.setattr(imitation.Student, "learn", learn)
    settings = SETTINGS.model_copy(update={"epochs": 1})
    with pytest.raises(Killed):
        await train(runtime, tiny_model, states, tmp_path / "sft", settings)
    assert [path.name for path in (tmp_path / "sft" / imitation.STATES).iterdir()] == ["01.parquet"]
    await train(runtime, tiny_model, states, tmp_path / "sft", settings.model_copy(update={"visits": 2}))
    assert seen == [(0, 12), (1, 8 + 4), (0, 12), (1, 4 + 4)]  # two states a visit, a third of the seeds


async def test_a_shallower_proxy_has_the_first_layers_alone(runtime, tiny_model, states, tmp_path):
    from transformers import AutoConfig

    settings = SETTINGS.model_copy(update={"layers": 1, "rounds": 0, "epochs": 1})
    await train(runtime, tiny_model, states, tmp_path / "sft", settings)
    (folder,) = (tmp_path / "sft" / "policies").iterdir()
    assert (
        AutoConfig.from_pretrained(folder).num_hidden_layers
        == 1
        < AutoConfig.from_pretrained(tiny_model).num_hidden_layers
    )
    with pytest.raises(UserError, match=r"sft\.layers is 99"):
        await train(runtime, tiny_model, states, tmp_path / "deep", settings.model_copy(update={"layers": 99}))


async def test_one_role_imitates_in_its_own_states_and_the_others_keep_the_base(runtime, tiny_model, states, tmp_path):
    settings = SETTINGS.model_copy(update={"roles": ("pick",), "epochs": 1})
    metrics = await train(runtime, tiny_model, states, tmp_path / "sft", settings)
    assert metrics["roles"] == {"pick": 6} and [row["states"] for row in metrics["rounds"]] == [6, 4 + 2]
    assert set(find_policy(str(tmp_path / "sft")).weights) == {"*", "pick"}


async def test_nothing_to_imitate_is_said(runtime, tiny_model, tmp_path):
    with pytest.raises(UserError, match="0 samples"):
        await train(runtime, tiny_model, [], tmp_path / "sft")


async def test_a_loss_that_is_no_number_ends_the_run_before_the_weights_take_it_in(tiny_model, states, tmp_path):
    student = imitation.Student(tiny_model, SETTINGS, 0, tmp_path / "checkpoint.pt")
    before = [parameter.detach().clone() for parameter in student.trainable()]
    nowhere = replace(states[0], marks=replace(states[0].marks, positions=(), taken=(0,), right=((0,),)))
    with pytest.raises(UserError, match=r"the loss is nan in step 1 of round 0, on .* lower sft\.lr"):
        student.learn([nowhere, *states[1:4]], 0, lr=0.1)
    assert all(map(torch.equal, before, student.trainable()))


async def test_what_a_grammar_forced_makes_no_written_action_count_for_less(tiny_model, states, tmp_path):
    """The loss of a step of one written action is the mean over the tokens that its grammar left open."""
    student = imitation.Student(tiny_model, SETTINGS, 0, tmp_path / "checkpoint.pt")
    said, grammar = student.allowed.vocabulary.tokenize("[left arm]"), Constraint(regex=r"\[(left|right) arm\]")
    written = replace(states[0], marks=None, completion_ids=tuple(said), grammar=grammar)
    (micro,) = lay_out([written], [0], student.allowed, 4096)
    with torch.no_grad():
        logprobs = student.actor(micro).logprobs
    free = int(micro.free.sum())
    assert 0 < free < written.length
    student.learn([written], 0, lr=0.0)
    assert student.losses[0]["loss"] == pytest.approx(-float(logprobs.sum()) / free, rel=1e-3)

"""What every algorithm must do: find the better of two arms, add micro-batches up, survive a kill, and train any system."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import ScriptedEngine
from seeding import make_seeds
from toy import QUESTIONS, SETTINGS, TWO_ARMS, AtMarks, Killed, ToyRuntime, TwoArms, late_reward, make_run, training_run

from dragoman.core import files
from dragoman.core.errors import EngineFault, Fault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.local import Vocabulary
from dragoman.registry.policy import METRICS, POINTER
from dragoman.rollout.exploration import Exploration
from dragoman.rollout.samples import read_samples
from dragoman.rollout.store import read_episodes
from dragoman.systems import build
from dragoman.training import algorithms, sft
from dragoman.training.learner import Learner, rate
from dragoman.training.selection import better
from dragoman.training.settings import AdapterParams, SeedsParams, SftParams, TrainParams

OTHERS = ["mygo", "grpo", "trajectory_grpo", "selftrain"]  # what PPO does is in a file of its own
LIKELIHOOD = {"mygo", "selftrain"}  # these have neither a ratio nor a reference
TIMED = {"rollout_seconds", "learn_seconds"}


def test_an_unknown_algorithm_is_named():
    with pytest.raises(
        UserError, match="unknown algorithm 'dpo': choose from grpo, mygo, ppo, selftrain, trajectory_grpo"
    ):
        algorithms.find("dpo")


def learner(name, tiny_model, **changes):
    return Learner(algorithms.find(name), tiny_model, SETTINGS.model_copy(update=changes), seed=0)


def test_learning_rates_fall_to_their_last_share():
    shares = [rate("cosine", progress, least=0.02) for progress in (0.0, 1 / 3, 0.5, 1.0)]
    assert shares == pytest.approx([1.0, 0.02 + 0.98 * 0.75, 0.51, 0.02])
    assert [rate("linear", progress) for progress in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]


def as_trajectories(found):
    """Each action of a tree as a trajectory of its own."""
    return [replace(sample, episode=f"{sample.episode}/{i}") for i, sample in enumerate(found)]


@pytest.mark.parametrize(("well", "count"), [(0, "every question"), (2, "[1-4] of [2-6] questions")])
@pytest.mark.parametrize("name", ["ppo", *OTHERS])
async def test_an_iteration_that_an_outage_has_hit_is_left_to_a_later_try(
    tiny_model, runtime, tmp_path, name, well, count
):
    class Broken(TwoArms):
        async def run(self, question, ctx):
            if question in QUESTIONS[:well]:  # the dev questions, where there are two
                return await super().run(question, ctx)
            raise EngineFault("the server is away")

    runtime.system = Broken()
    run = make_run(name, tiny_model, runtime, tmp_path / "rl")
    with pytest.raises(Fault, match=f"{count} met a fault, the first: the server is away"):
        await run.train()
    assert not run.history


async def test_what_dev_chose_is_known_after_an_outage(tiny_model, runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.training.loop.better", lambda *_: True)
    run = make_run("grpo", tiny_model, runtime, tmp_path / "rl", iterations=3, dev_every=1)
    iterate = run._iterate

    async def once(ahead):
        if run.iteration == 1:
            raise Fault("the server is away")
        return await iterate(ahead)

    monkeypatch.setattr(run, "_iterate", once)
    with pytest.raises(Fault):
        await run.train()
    again = make_run("grpo", tiny_model, runtime, tmp_path / "rl", iterations=3, dev_every=1)
    again._load_checkpoint()
    assert again.best == run.best and again.best["iteration"] == again.iteration == 1


async def test_what_a_run_without_hope_has_learnt_is_seen_on_dev(tiny_model, runtime, tmp_path):
    run = make_run("mygo", tiny_model, runtime, tmp_path / "rl", iterations=9, dev_every=9)
    run.algorithm = replace(run.algorithm, hopeless=lambda history, settings: "no hope" if len(history) > 1 else "")
    metrics = await run.train()
    assert metrics["stopped"] == "no hope" and [row["iteration"] for row in run.dev_history] == [0, 2]


@pytest.mark.parametrize(
    "name", ["mygo", "grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("trajectory_grpo", "selftrain"))]
)
async def test_it_finds_the_better_of_two_arms(tiny_model, runtime, tmp_path, name):
    run = make_run(name, tiny_model, runtime, tmp_path / "rl", **TWO_ARMS)
    await run.train()
    assert late_reward(run) > 0.8 > run.history[0]["reward"]
    assert run.dev_history[-1]["dev_reward"] == 1.0
    assert run.dev_history[-1]["share_Right"] == 1.0
    if name not in LIKELIHOOD:  # it got there in spite of the pull to the warm-up
        assert run.settings.grpo.kl_coef > 0 and max(row.get("kl", 0) for row in run.history) > 0.01


@pytest.mark.parametrize("name", OTHERS)
def test_micro_batches_of_one_row_equal_one_of_all(tiny_model, toy_samples, name):
    gradients, batch = [], as_trajectories(toy_samples)
    for tokens in (1, 10_000):
        own = learner(name, tiny_model, micro_batch_tokens=tokens, max_grad_norm=1e9)
        experience, _ = own.prepare(batch)
        own.step(batch, range(len(batch)), experience)
        gradients.append([p.grad.clone() for p in own.actor.trainable()])
    assert sum(float(g.abs().sum()) for g in gradients[0]) > 0
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", *OTHERS])
def test_the_mean_step_of_an_epoch_has_the_gradient_of_the_iteration(tiny_model, toy_samples, name):
    """Two roles, of which one acted in one state alone: in the second step."""
    rare = toy_samples[-1].group
    batch = [replace(x, role="rare" if x.group == rare else "often") for x in as_trajectories(toy_samples)]

    def gradients(parts):
        own = learner(name, tiny_model, max_grad_norm=1e9, policy_lr=1e-12, value_lr=1e-12)
        experience, _ = own.prepare(batch)
        found, figures = [], []
        for part in parts:
            figures.append(own.step(batch, part, experience, steps=len(parts)))
            found.append([p.grad.clone() for p in own.actor.trainable()])
        means = [sum(step[i] for step in found) / len(parts) for i in range(len(found[0]))]
        return means, {name: sum(f[name] for f in figures) / len(parts) for name in figures[0]}

    whole, at_once = gradients([range(12)])
    mean, in_steps = gradients([range(8), range(8, 12)])
    assert sum(float(g.abs().sum()) for g in whole) > 0
    for one, other in zip(whole, mean, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert in_steps.keys() == at_once.keys()
    figure = "nll" if name in LIKELIHOOD else "policy_loss"
    assert in_steps[figure] == pytest.approx(at_once[figure], abs=1e-4)


def test_a_survey_tells_free_tokens_from_forced_ones(tiny_model, toy_samples):
    own = learner("grpo", tiny_model)
    survey = own.survey(toy_samples)
    there = torch.zeros_like(survey.free)
    for i, sample in enumerate(toy_samples):
        there[i, : sample.length] = True
    assert survey.free.any(1).all() and (there & ~survey.free).any() and not (survey.free & ~there).any()
    assert survey.old[there & ~survey.free].abs().max() < 1e-6
    assert survey.figures(toy_samples)["entropy"] == pytest.approx(float(survey.entropy.sum() / survey.free.sum()))
    assert [own.allowed.free(x) for x in toy_samples] == survey.free.sum(1).tolist()
    informed = survey.informed(toy_samples)
    for group in {x.group for x in informed}:  # one draw of each kind, and all kinds
        assert sum(x.probability for x in informed if x.group == group) == pytest.approx(1, abs=1e-2)
    assert {x.probability for x in survey.informed([replace(x, forced=False) for x in toy_samples])} == {None}


@pytest.mark.parametrize("adapter", [SETTINGS.adapter, None], ids=["lora", "full"])
@pytest.mark.parametrize("name", OTHERS)
def test_all_that_is_trainable_changes_and_nothing_else(tiny_model, toy_samples, name, adapter):
    own = learner(name, tiny_model, adapter=adapter, epochs=2)
    before = {n: p.detach().clone() for n, p in own.actor.named_parameters()}
    batch = as_trajectories(toy_samples)
    experience, _ = own.prepare(batch)
    own.learn(batch, experience, shuffle=random.Random(0))
    changed = {n: not torch.equal(before[n], p) for n, p in own.actor.named_parameters()}
    assert changed == {n: p.requires_grad for n, p in own.actor.named_parameters()} and sum(changed.values()) > 4
    assert (own.reference is not None) == (name not in LIKELIHOOD and adapter is None)
    if own.reference is not None:
        assert all(p.grad is None for p in own.reference.parameters())


def test_mygo_makes_what_it_learns_likelier(tiny_model, toy_samples):
    own = learner("mygo", tiny_model, epochs=8)
    right = [s for s in toy_samples if s.kind == "Right"]
    before = own.survey(right).old.sum()
    _, figures = own.prepare(right)
    assert "kl" not in figures and figures["engine_difference"] < 1e-4
    own.learn(right, (), shuffle=random.Random(0))
    assert own.survey(right).old.sum() > before


@pytest.mark.parametrize(
    ("name", "changes", "at"),
    [
        ("mygo", {"iterations": 2}, "release"),
        ("grpo", {"iterations": 2}, "learn"),
        ("ppo", {"critic": "head"}, "release"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("mygo", {"iterations": 2}, at) for at in ("roll_out", "learn")),
                *(("grpo", {"iterations": 2}, at) for at in ("roll_out", "release")),
                ("trajectory_grpo", {"iterations": 2}, "learn"),
                ("selftrain", {"iterations": 2, "max_steps": 3, "warmup_steps": 2}, "learn"),
                ("ppo", {"critic": "tree"}, "learn"),
            )
        ),
    ],
)
async def test_killed_and_started_again_it_comes_to_the_same_numbers(
    tiny_model, tmp_path, monkeypatch, name, changes, at
):
    async def train(out, fail_after=None):
        runtime = ToyRuntime()
        run = make_run(name, tiny_model, runtime, out, **changes, concurrency=1)  # the last digits depend on the batch
        calls = 0
        target = {"roll_out": run, "release": runtime, "learn": run.learner}[at]
        original = getattr(target, at)

        def dying(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == fail_after:
                raise Killed
            return original(*arguments, **named)

        monkeypatch.setattr(target, at, dying)
        try:
            return await run.train(), run
        finally:
            await runtime.close()

    unbroken, whole = await train(tmp_path / "unbroken")
    with pytest.raises(Killed):
        await train(tmp_path / "broken", fail_after=2)
    resumed, rest = await train(tmp_path / "broken")
    assert resumed == unbroken
    assert [{k: v for k, v in row.items() if k not in TIMED} for row in rest.history] == [
        {k: v for k, v in row.items() if k not in TIMED} for row in whole.history
    ]
    again, _ = await train(tmp_path / "broken")
    assert again == unbroken  # finished already


@pytest.mark.parametrize("step", ["pointer", "metrics", "after"])
async def test_killed_while_it_publishes_and_started_again_it_comes_to_the_same_policy(
    tiny_model, runtime, tmp_path, monkeypatch, step
):
    unbroken = await make_run("mygo", tiny_model, runtime, tmp_path / "unbroken", iterations=1).train()
    original = files.write_json

    def write_or_die(path, value):
        due = path == tmp_path / "broken" / {"pointer": POINTER}.get(step, METRICS)
        if not due or step == "after":
            original(path, value)
        if due:
            raise Killed

    monkeypatch.setattr(files, "write_json", write_or_die)
    with pytest.raises(Killed):
        await make_run("mygo", tiny_model, runtime, tmp_path / "broken", iterations=1).train()
    monkeypatch.setattr(files, "write_json", original)
    assert await make_run("mygo", tiny_model, runtime, tmp_path / "broken", iterations=1).train() == unbroken
    assert not {path.name for path in (tmp_path / "broken").iterdir()} & {"best", "current", "checkpoint.pt"}
    assert (tmp_path / "broken" / "dev.csv").read_text() == (tmp_path / "unbroken" / "dev.csv").read_text()


async def test_another_algorithm_in_the_same_folder_starts_anew(tiny_model, runtime, tmp_path):
    first = await make_run("mygo", tiny_model, runtime, tmp_path / "rl", iterations=1).train()
    second = await make_run("grpo", tiny_model, runtime, tmp_path / "rl", iterations=1).train()
    assert (first["algorithm"], second["algorithm"]) == ("mygo", "grpo")
    assert "dropped_groups" in (tmp_path / "rl" / "history.csv").read_text()


REINFORCE = """
import torch

from dragoman.training.algorithm import Algorithm, Collected


async def collect(loop, questions):
    episodes = await loop.roll_out(questions)
    return Collected(episodes, loop.samples(episodes))


def prepare(learner, batch):
    return (torch.tensor([sample.credit - 0.5 for sample in batch]),), {}


def loss(micro, experience, settings):
    value = -(experience[0][:, None] * micro.logprobs * micro.free).sum()
    return value, {"policy_loss": float(value.detach())}


ALGORITHM = Algorithm("reinforce", collect, prepare, loss)
"""


async def test_an_algorithm_of_one_file_is_found_by_its_name_and_trains(tiny_model, runtime, tmp_path, monkeypatch):
    (tmp_path / "reinforce.py").write_text(REINFORCE)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    assert TrainParams(algorithm="reinforce").algorithm == "reinforce"
    run = make_run("reinforce", tiny_model, runtime, tmp_path / "rl", **TWO_ARMS)
    metrics = await run.train()
    assert metrics["algorithm"] == "reinforce" and "policy_loss" in run.history[0]
    assert late_reward(run) > 0.8 > run.history[0]["reward"]


SPAN = {"queries": "span"}
SYSTEMS = {
    "c3po": {**SPAN, "max_depth": 3, "action_tokens": 48},
    "maps": {**SPAN, "max_rounds": 1, "query_tokens": 24},
    "mrag": {"max_calls": 2, "max_reads": 1, "max_items": 1, "line_chars": 6, "validator": False, "reviser": False},
    "mujica": {**SPAN, "max_iterations": 1, "max_questions": 2, "question_tokens": 24, "sentence_tokens": 24},
}
ASKED = [Question(f"q{i}", f"Which town is number {i}?", ("yes",)) for i in range(4)]
PASSAGES = [Passage(f"p{i}", f"Town {i}", f"town {i} is number {i}.") for i in range(6)]


PUBLISHED = {("c3po", "ppo"), ("maps", "grpo"), ("mujica", "mygo")}  # mRAG's trees are large
PAIRS = [
    pytest.param(s, a, marks=[] if (s, a) in PUBLISHED else [pytest.mark.slow])
    for s in SYSTEMS
    for a in ("ppo", *OTHERS)
]


def test_the_readme_says_of_each_pair_whether_it_is_trained_here():
    columns = {"PPO": "ppo", "GRPO": "grpo", "GRPO over trajectories": "trajectory_grpo", "MyGO": "mygo"}
    columns |= {"warm-up": "sft", "self-training": "selftrain"}
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    matrix = text[text.index("A figure is a difference") : text.index("## Where to read on")].strip()
    lines = [line for line in matrix.splitlines() if line.startswith("|")]
    (_, *names), _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    said = {
        (row[0][1 : row[0].index("]")].lower().replace("-", ""), columns[name])
        for row in rows
        for name, cell in zip(names, row[1:], strict=True)
        if cell != "not run"
    }
    assert said == {pair.values for pair in PAIRS} | {(system, "sft") for system in SYSTEMS}


@pytest.mark.parametrize(("system", "name"), PAIRS)
async def test_every_system_can_be_trained_by_every_algorithm(tiny_model, tmp_path, system, name):
    settings, asked = {"k": 2, "proxy_words": 10, **SYSTEMS[system]}, ASKED
    if (own := {"mujica": "planner", "maps": "agent"}.get(system)) and "grpo" in name:
        settings |= {
            "answers": own
        }  # the tiny planner ends at once, and all searches find the same: only their answers differ
        asked = [replace(question, answers=("town",)) for question in ASKED]  # which half of what can be copied holds
    answers = ScriptedEngine(lambda prompt, rng: rng.choice(["yes", "no"]))  # what is shown decides
    runtime = ToyRuntime(build(system, settings), answers, PASSAGES)
    exploration = Exploration(breadth=(2, 2, 1), force=1)
    run = make_run(
        name,
        tiny_model,
        runtime,
        tmp_path / "rl",
        system=system,
        asked=asked,
        iterations=2,
        questions=4,
        exploration=exploration,
    )
    before = run.learner.actor.state()
    try:
        metrics = await run.train()
    finally:
        await runtime.close()
    assert metrics["iterations"] == 2 and not metrics["stopped"]
    assert (tmp_path / "rl" / "policies" / metrics["policy"] / "config.json").is_file()
    roles = {role.name for role in build(system, settings).roles}
    assert sum(row["actions"] for row in run.history) > 0
    for row in run.history:
        assert row["valid_actions"] > 0.9
        assert {column.removeprefix("actions_") for column in row if column.startswith("actions_")} <= roles
    after = run.learner.actor.state()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["ppo", "mygo", "grpo", "trajectory_grpo", "selftrain"])
@pytest.mark.parametrize("decide", [pytest.param("text", marks=pytest.mark.slow), "marks"])
async def test_three_agents_of_which_one_answers_are_trained_together(tiny_model, tmp_path, name, decide):
    """At marks too, where judge and query extension agent score what is listed, and the answer agent writes."""
    settings = {"k": 2, "queries": "span", "proxy_words": 10, "max_rounds": 1, "answers": "agent", "decide": decide}
    runtime = ToyRuntime(build("maps", settings), passages=PASSAGES)
    asked = [replace(question, answers=("town",)) for question in ASKED]  # which half of what can be copied holds
    exploration = Exploration(breadth=(2, 2, 4), force=1)
    size = {"iterations": 2, "questions": 4, "exploration": exploration}
    run = make_run(name, tiny_model, runtime, tmp_path / "rl", system="maps", asked=asked, **size)
    before = run.learner.actor.state()
    try:
        metrics = await run.train()
    finally:
        await runtime.close()
    assert metrics["iterations"] == 2 and not metrics["stopped"]
    counts = [(column, n) for row in run.history for column, n in row.items() if column.startswith("actions_")]
    learnt = {column.removeprefix("actions_") for column, n in counts if n}
    wanted = {"answer", "judge"} if decide == "marks" else {"answer"}
    assert wanted <= learnt <= {"query", "judge", "answer"}
    after = run.learner.actor.state()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("role", ["judge", "query", "answer"])
async def test_each_of_three_agents_is_trained_alone(tiny_model, tmp_path, role):
    settings = {"k": 1, "queries": "span", "proxy_words": 10, "max_rounds": 2, "answers": "agent", "decide": "marks"}
    settings |= {"rounds": "fixed"} if role == "query" else {}  # the tiny judge agrees at once
    names = ("Alder", "Brisa", "Corvo")
    towns = [Passage(name[0], name, f"{name} is a town.") for name in names]
    asked = [Question(f"q{i}", "Is it Alder, Brisa or Corvo?", names[:1], supporting_ids=("C",)) for i in range(4)]
    runtime = ToyRuntime(build("maps", settings), passages=towns)
    exploration = Exploration(breadth=(1,), breadth_of={role: 4}, force=0)
    size = {"iterations": 2, "questions": 4, "exploration": exploration, "shaping": "gold_recall", "own_weights": True}
    run = make_run("grpo", tiny_model, runtime, tmp_path / "rl", system="maps", asked=asked, roles=(role,), **size)
    before = run.learner.actor.state()
    try:
        await run.train()
    finally:
        await runtime.close()
    learnt = {column.removeprefix("actions_") for row in run.history for column in row if column.startswith("actions_")}
    assert learnt == {role}
    after = run.learner.actor.state()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
async def test_at_marks_a_whole_tree_is_learnt_with_exact_shares(tiny_model, tmp_path, name):
    """Both arms, and after each all eight selections: of three words, each in or out."""
    runtime = ToyRuntime(AtMarks())
    whole = Exploration(breadth=(2, 8), force=0)
    run = make_run(name, tiny_model, runtime, tmp_path / "rl", iterations=1, exploration=whole, critic="tree")
    try:
        await run.train()
    finally:
        await runtime.close()
    learnt = read_samples(tmp_path / "rl/samples.parquet")
    assert {x.role for x in learnt} == {"choose", "pick"}
    for role, siblings in (("choose", 2), ("pick", 8)):
        groups = Counter(x.group for x in learnt if x.role == role)
        assert set(groups.values()) == {siblings}
        for group in groups:  # nothing is left out, so probabilities add up
            assert sum(x.probability for x in learnt if x.group == group) == pytest.approx(1, abs=1e-6)
    right = next(x for x in learnt if x.role == "choose" and x.credit > 0)
    pear = [x for x in learnt if x.role == "pick" and x.episode == right.episode and x.credit == 1.0]
    assert right.credit == pytest.approx(pear[0].probability) and len(pear) == 1
    (row,) = run.history
    assert row["engine_difference"] < 1e-3 and row["entropy"] > 0.1


@pytest.mark.parametrize("system", ["c3po", *(pytest.param(s, marks=pytest.mark.slow) for s in SYSTEMS if s != "c3po")])
async def test_every_system_can_be_warmed_up_by_rejection(tiny_model, tmp_path, system):
    settings = {"k": 2, "proxy_words": 10, **SYSTEMS[system]}
    answers = ScriptedEngine(lambda prompt, rng: rng.choice(["yes", "no"]))
    runtime = ToyRuntime(build(system, settings), answers, PASSAGES)
    chosen = SeedsParams(min_credit=0, exploration=Exploration(breadth=(2, 2, 1), force=1))
    steps = SftParams(
        adapter=AdapterParams(rank=4, alpha=8), lr=0.003, batch_size=4, micro_batch=2, epochs=2, dev_questions=2
    )
    try:
        played, backends = runtime.open(f"{system}@{tiny_model}")
        made = await make_seeds(
            system,
            played,
            backends,
            ASKED,
            chosen,
            lambda: Vocabulary(tiny_model, None),
            out=tmp_path / "seeds",
        )
        kept = read_samples(tmp_path / "seeds" / "samples.parquet")
        metrics = await sft.train(training_run(tiny_model, runtime, tmp_path / "sft", ASKED[:2], system), kept, steps)
    finally:
        await runtime.close()
    # an action in a parallel branch may be kept with the run that was right, and be worth nothing beside first choices
    assert 0 < len(kept) <= made["trees"]["nodes"] and any(sample.credit > 0 for sample in kept)
    assert set(made["kept"]["roles"]) <= {role.name for role in build(system).roles}
    losses = (tmp_path / "sft" / "loss.csv").read_text().splitlines()[1:]
    assert len(losses) >= 2 and metrics["samples"] == len(kept)
    assert (tmp_path / "sft" / "policies" / metrics["policy"] / "config.json").is_file()


def test_a_policy_is_better_by_its_paired_differences():
    old = [0.0, 1.0, 0.0, 1.0]
    assert better([1.0, 1.0, 0.0, 1.0], old, 0.0)
    assert not better(old, old, 0.0)
    # mean 1/4, standard deviation sqrt(3)/4, standard error sqrt(3)/8
    assert better([1.0, 1.0, 0.0, 1.0], old, 1.15) and not better([1.0, 1.0, 0.0, 1.0], old, 1.16)
    assert better([1.0, None, 0.0, None], [0.0, 1.0, 0.0, None], 0.0)
    assert not better([None], [1.0], 0.0)


@pytest.mark.parametrize(
    ("algorithm", "shaping"), [("ppo", None), ("ppo", "gold_recall + f1"), ("mygo", "gold_recall")]
)
def test_decisions_alone_are_refused_where_nothing_scores_them(tiny_model, tmp_path, algorithm, shaping):
    unasked = Exploration(breadth=(2,), answers=False)
    with pytest.raises(
        UserError, match=rf"rl.exploration.answers: without answers {algorithm} has nothing to learn from"
    ):
        make_run(algorithm, tiny_model, ToyRuntime(), tmp_path / "rl", exploration=unasked, shaping=shaping)


async def test_rl_without_answers_learns_from_the_shaping_and_asks_on_dev_alone(tiny_model, tmp_path):
    settings = {"decide": "marks", "queries": "names", "roadmap": False, "answer_tokens": 4, "strategy": "Search"}
    passages = [Passage("p", "Bhutan", "Thimphu is its capital."), Passage("q", "Perth", "A city.")]
    runtime = ToyRuntime(build("c3po", settings), passages=passages)
    asked = [Question(f"q{i}", f"Where is Thimphu, {i}?", ("Bhutan",), supporting_ids=("p",)) for i in range(3)]
    run = make_run(
        "ppo",
        tiny_model,
        runtime,
        tmp_path / "rl",
        system="c3po",
        asked=asked,
        iterations=1,
        shaping="2 * gold_recall + gold_precision",
        exploration=Exploration(breadth=(1, 4), answers=False),
    )
    try:
        await run.train()
    finally:
        await runtime.close()
    (row,) = run.history
    expected = []
    for episode in read_episodes(run.rollout_folder(0) / "episodes.jsonl"):
        kept = {node.id: node.probability for node in episode.nodes if node.role == "filter"}
        earned = {t.nodes[-1]: t.rewards[run.shaped] for t in episode.trajectories}
        # of the four selections of two passages: nothing, the wrong one, both, the right one
        assert sorted(earned.values()) == [0, 0, 2.5, 3]
        expected.append(sum(kept[id] * earned[id] for id in kept))
    assert row["reward"] == pytest.approx(sum(expected) / len(expected))
    assert (row["unscored"], row["llm_hits"], row["llm_misses"]) == (0, 0, 0) and row["actions"] > 0
    assert all(0 <= at["dev_reward"] <= 1 for at in run.dev_history)

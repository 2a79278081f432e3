"""Self-training: which trajectories it keeps and what it maximizes, by hand; and its optimizer's steps."""

from types import SimpleNamespace

import pytest
import torch
from toy import SETTINGS, make_run

from dragoman.rollout.samples import read_samples
from dragoman.rollout.store import read_episodes
from dragoman.training.algorithm import MicroBatch
from dragoman.training.algorithms import find
from dragoman.training.algorithms.selftrain import alike, best, best_of_each
from dragoman.training.learner import Learner, rate
from dragoman.training.settings import MygoParams, SelftrainParams


def drawn(question: str, draw: int, earned: float | None, steps: int = 1) -> SimpleNamespace:
    trajectory = SimpleNamespace(rewards={"r": earned}, steps=["s"] * steps)
    return SimpleNamespace(question={"id": question}, draw=draw, trajectories=[trajectory])


@pytest.mark.parametrize(
    ("earned", "places"),
    [
        ([0.2, 0.9, 0.4], [1]),
        ([0.5, 0.9, 0.9, 0.1, 0.9, 0.9], [1, 2, 4]),  # four are as good: the first three
        ([0.9, 0.9 + 1e-9], [0, 1]),  # a sum in another order
        ([None, 0.3, None], [1]),  # what could not be scored is neither good nor bad
        ([0.0, 0.0], []),  # the best of nothing teaches nothing
        ([None, None], []),
        ([], []),
    ],
)
def test_the_best_are_kept_and_three_of_equals(earned, places):
    assert best(earned, most=3, above=0.0) == places


def test_the_bound_is_a_setting():
    assert best([-1.0, 0.0], most=3, above=-2.0) == [1]
    assert best([0.5, 0.4], most=3, above=0.5) == []


@pytest.mark.parametrize(
    ("earned", "same"),
    [
        ([0.4, 0.4 + 1e-9, 0.4], True),
        ([0.4, None, 0.4], True),
        ([0.4, 0.4, 0.5], False),
        ([0.4, None], False),  # there is nothing to compare it with
        ([None, None], False),
        ([], False),
    ],
)
def test_a_tie_is_among_several_that_were_scored(earned, same):
    assert alike(earned) is same


def test_each_question_has_its_own_best():
    episodes = [
        drawn(q, i, earned)
        for i, row in enumerate([(0.1, 0.9), (0.3, 0.9), (0.2, 0.0)])
        for q, earned in zip("ab", row, strict=True)
    ]
    kept, tied = best_of_each(episodes, "r", 0.0, SelftrainParams())
    assert [(e.question["id"], e.draw) for e in kept] == [("a", 1), ("b", 0), ("b", 1)] and tied == 0


def test_of_two_that_earned_the_same_the_cheaper_is_better():
    episodes = [drawn("a", 0, 1.0, steps=4), drawn("a", 1, 1.0, steps=2)]
    kept, tied = best_of_each(episodes, "r", 0.01, SelftrainParams())
    assert ([e.draw for e in kept], tied) == ([1], 0)
    kept, tied = best_of_each(episodes, "r", 0.0, SelftrainParams())
    assert ([e.draw for e in kept], tied) == ([0, 1], 1)


def test_the_loss_is_the_negative_mean_log_likelihood_of_free_tokens():
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, 9.0]])  # the last was forced, and does not count
    micro = MicroBatch(logprobs, None, torch.tensor([[True, True], [True, False]]), tokens=3)
    value, figures = find("selftrain").loss(micro, (), SETTINGS)
    assert value.item() == pytest.approx((1.0 + 2.0 + 0.5) / 3) == figures["nll"]


async def test_only_the_best_trajectories_of_a_question_are_learnt(tiny_model, runtime, tmp_path):
    out = tmp_path / "rl"
    chosen = SelftrainParams(trajectories=5, most=2)
    run = make_run("selftrain", tiny_model, runtime, out, iterations=1, questions=6, selftrain=chosen)
    await run.train()
    folders = sorted((out / "rollouts/0000").iterdir())
    episodes = [e for folder in folders for e in read_episodes(folder / "episodes.jsonl")]
    right: dict[str, list[str]] = {}
    for e in episodes:
        if e.trajectories[0].rewards["cover_em"]:
            right.setdefault(e.question["id"], []).append(e.key)
    (row,) = run.history
    assert row["trajectories"] == 30 and row["kept"] == sum(len(keys[:2]) for keys in right.values()) > 0
    assert row["unlearnt"] == 6 - len(right) and row["kept_words"] == 1.0  # the answer is "right"
    learnt = read_samples(out / "samples.parquet")
    assert {x.episode for x in learnt} == {key for keys in right.values() for key in keys[:2]}
    assert "kl" not in row and row["nll"] > 0


async def test_questions_whose_trajectories_tie_are_counted_and_may_be_left_out(tiny_model, runtime, tmp_path):
    sizes = {"iterations": 1, "questions": 6}
    kept = {}
    for only in (False, True):
        chosen = SelftrainParams(trajectories=3, only_contrasts=only, above=-1.0)
        run = make_run("selftrain", tiny_model, runtime, tmp_path / str(only), selftrain=chosen, **sizes)
        await run.train()
        earned: dict[str, set[float]] = {}
        for folder in (tmp_path / str(only) / "rollouts/0000").iterdir():
            for e in read_episodes(folder / "episodes.jsonl"):
                earned.setdefault(e.question["id"], set()).add(e.trajectories[0].rewards["cover_em"])
        (row,) = run.history
        ties = {q for q, scores in earned.items() if len(scores) == 1}
        assert row["tied"] == len(ties) and 0 < len(ties) < 6
        assert row["unlearnt"] == (len(ties) if only else 0)
        kept[only] = row["kept"]
    assert kept[False] == kept[True] + 3 * len(ties)


async def test_a_run_in_which_nothing_is_kept_ends_and_says_why(tiny_model, runtime, tmp_path):
    chosen = SelftrainParams(trajectories=2, above=1.0, patience=2)  # no reward is above 1
    run = make_run("selftrain", tiny_model, runtime, tmp_path / "rl", iterations=9, questions=6, selftrain=chosen)
    metrics = await run.train()
    assert metrics["iterations"] == 2 and "rl.selftrain.above, 1" in metrics["stopped"]


async def test_drawn_anew_the_engine_is_still_watched(tiny_model, runtime, tmp_path):
    """Whatever is set for another algorithm."""
    stray = MygoParams(offline=True)
    run = make_run("selftrain", tiny_model, runtime, tmp_path / "rl", iterations=1, questions=6, mygo=stray)
    await run.train()
    assert run.history[0]["engine_difference"] < 1e-3


async def test_drawn_once_every_iteration_learns_from_the_same(tiny_model, runtime, tmp_path):
    chosen = SelftrainParams(trajectories=5, redraw=False)
    sizes = {"iterations": 3, "questions": 6, "policy_lr": 0.05}  # of which one would lead it far from the warm-up
    run = make_run("selftrain", tiny_model, runtime, tmp_path / "rl", selftrain=chosen, **sizes)
    metrics = await run.train()
    assert metrics["iterations"] == 3 and not metrics["stopped"]
    assert not any("engine_difference" in row for row in run.history)  # it would end the run as it learns
    assert [path.name for path in (tmp_path / "rl/rollouts").iterdir()] == ["0000"]
    first, *later = run.history
    assert all(
        (row["kept"], row["actions"], row["reward"]) == (first["kept"], first["actions"], first["reward"])
        for row in later
    )
    assert later[-1]["nll"] < first["nll"]  # it learns them by heart


@pytest.mark.parametrize(
    ("schedule", "progress", "factor"),
    [("linear", 0.0, 1.0), ("linear", 0.25, 0.75), ("linear", 1.0, 0.0), ("cosine", 0.5, 0.5), ("cosine", 1.0, 0.0)],
)
def test_learning_rates_fall_by_their_schedule(schedule, progress, factor):
    assert rate(schedule, progress) == pytest.approx(factor, abs=1e-12)


def test_a_learning_rate_rises_over_the_warm_up_and_falls_to_the_last_step(tiny_model, toy_samples):
    changes = {"schedule": "linear", "warmup_steps": 2, "max_steps": 6, "policy_lr": 0.1}
    own = Learner(find("selftrain"), tiny_model, SETTINGS.model_copy(update=changes), seed=0)
    rates = []
    while not own.exhausted:
        own.step(toy_samples, [0], ())
        rates.append(own.optimizer.param_groups[0]["lr"])
    # steps 1 and 2 warm up; then (6 - 2) / 4, (6 - 3) / 4, ...
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.075, 0.05, 0.025])


async def test_it_ends_after_the_last_step_and_answers_dev_once_more(tiny_model, runtime, tmp_path):
    sizes = {"iterations": 9, "questions": 6, "epochs": 4, "batch_size": 2, "max_steps": 5}
    run = make_run("selftrain", tiny_model, runtime, tmp_path / "rl", **sizes)
    metrics = await run.train()
    assert run.learner.steps == 5 and metrics["iterations"] < 9 and not metrics["stopped"]
    assert run.dev_history[-1]["iteration"] == metrics["iterations"]

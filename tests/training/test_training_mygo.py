"""MyGO: its threshold and its likelihood by hand, its propositions on six arms, and whom it learns from."""

import itertools
import math

import pytest
import torch
from toy import QUESTIONS, ToyRuntime, make_run

from dragoman.core.types import Question
from dragoman.rollout.samples import read_samples
from dragoman.rollout.store import read_episodes
from dragoman.training.algorithms.mygo import hopeless, next_threshold, raised
from dragoman.training.likelihood import likelihood_loss
from dragoman.training.settings import MygoParams, RlParams

MASK = torch.tensor([[True, True, True], [True, True, False]])
LOGPROBS = torch.tensor([[-1.0, -2.0, -0.5], [-0.25, 0.0, 9.0]])  # the second token of the second was forced


def test_the_threshold_rises_with_what_first_attempts_earn_and_never_falls():
    threshold, seen = 0.4, []
    for first in ([1.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.5, 1.0], [], [0.0, 0.0], [1.0, 1.0]):
        threshold = raised(threshold, first)
        seen.append(threshold)
    assert seen == [0.4, 0.75, 0.75, 0.75, 1.0]


@pytest.mark.parametrize(
    ("settings", "thresholds", "passing"),
    [
        ({}, [0.55, 0.55], [[1.0, 0.75], [0.6]]),
        ({"progressive": False}, [0.4, 0.4], [[1.0, 0.45, 0.75], [0.6, 0.5]]),
        ({"offline": True}, [0.4, 0.4], [[1.0, 0.45, 0.75], [0.6, 0.5]]),
    ],
)
def test_online_less_passes_than_offline_where_first_attempts_earn_more_than_the_first_threshold(
    settings, thresholds, passing
):
    threshold, seen, passed = 0.4, [], []
    for first in ([1.0, 0.45, 0.0, 0.75], [0.6, 0.5, 0.1, 0.2]):  # means: 0.55 and 0.35
        threshold = next_threshold(MygoParams(**settings), threshold, first)
        seen.append(threshold)
        passed.append([earned for earned in first if earned >= threshold])
    assert seen == pytest.approx(thresholds) and passed == passing


def test_the_loss_is_the_mean_over_the_agents_own_tokens():
    assert likelihood_loss(LOGPROBS, MASK, tokens=5).item() == pytest.approx((1.0 + 2.0 + 0.5 + 0.25) / 5)
    parts = [likelihood_loss(LOGPROBS[i : i + 1], MASK[i : i + 1], tokens=5).item() for i in (0, 1)]
    assert parts == [pytest.approx(0.7), pytest.approx(0.05)]


def test_its_gradient_is_that_of_the_log_probabilities_alone():
    logprobs = LOGPROBS.clone().requires_grad_()
    likelihood_loss(logprobs, MASK, tokens=5).backward()
    assert logprobs.grad.tolist() == [[pytest.approx(-0.2)] * 3, [pytest.approx(-0.2), pytest.approx(-0.2), 0.0]]


REWARDS = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)  # of six trajectories


def passing(policy, threshold):
    """The distribution of what passes."""
    kept = policy * (threshold <= REWARDS)
    return kept / kept.sum()


@pytest.mark.parametrize("threshold", [0.2, 0.6, 1.0])
def test_proposition_1_what_passes_nears_the_optimal_policy_as_its_temperature_falls(threshold):
    distances = []
    for temperature in (1.0, 0.3, 0.1, 0.03, 0.01):
        optimal = (REWARDS / temperature).softmax(0)
        q = passing(optimal, threshold)
        kl = float((q * (q / optimal).log()).nan_to_num().sum())
        assert kl == pytest.approx(-math.log(float(optimal[threshold <= REWARDS].sum())), abs=1e-9)  # appendix B, eq. 8
        distances.append(kl)
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-6


def test_proposition_2_distance_to_the_best_and_variance_vanish_as_the_threshold_nears_the_maximum():
    policy = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.1, 0.05], dtype=torch.float64)
    best = passing(policy, 1.0)
    distances, variances = [], []
    for threshold in REWARDS.tolist():
        q = passing(policy, threshold)
        distances.append(float((q - best).abs().sum() / 2))
        variances.append(float((q * (REWARDS - (q * REWARDS).sum()) ** 2).sum()))
        assert variances[-1] <= (1.0 - threshold) ** 2 / 4 + 1e-12
    for shrinking in (distances, variances):
        assert all(later < earlier for earlier, later in itertools.pairwise(shrinking))
        assert shrinking[-1] == pytest.approx(0)


def test_on_six_arms_the_threshold_climbs_to_the_maximum_and_takes_the_policy_along():
    torch.manual_seed(0)
    logits = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    threshold, thresholds, variances = 0.2, [], []
    for _ in range(150):
        drawn = torch.distributions.Categorical(logits=logits.detach()).sample((16, 32))  # attempts of 32 questions
        earned = REWARDS[drawn]
        threshold = raised(threshold, earned[0].tolist())
        passes = earned >= threshold
        passed = [int(drawn[passes[:, i].nonzero()[0, 0], i]) for i in range(32) if passes[:, i].any()]
        thresholds.append(threshold)
        variances.append(float(REWARDS[passed].var(correction=0)))
        logprobs = logits.log_softmax(0)[passed][:, None]
        optimizer.zero_grad()
        likelihood_loss(logprobs, torch.ones_like(logprobs, dtype=torch.bool), tokens=len(passed)).backward()
        optimizer.step()
    assert thresholds == sorted(thresholds) and thresholds[0] < 0.65 < 0.9 < thresholds[-1]
    assert variances[-1] < variances[0] / 10
    assert float(logits.softmax(0)[-1].detach()) > 0.9


async def test_a_question_is_attempted_until_it_passes_and_only_that_trajectory_is_learnt(
    tiny_model, runtime, tmp_path
):
    out = tmp_path / "rl"
    run = make_run("mygo", tiny_model, runtime, out, iterations=1, questions=6, mygo=MygoParams(attempts=4))
    await run.train()
    attempts = [read_episodes(folder / "episodes.jsonl") for folder in sorted((out / "rollouts/0000").iterdir())]
    right = [{e.question["id"] for e in a if e.trajectories[0].rewards["cover_em"] == 1.0} for a in attempts]
    asked = [{e.question["id"] for e in a} for a in attempts]
    assert asked[0] == {q.id for q in QUESTIONS} and len(asked) > 1
    for i in range(1, len(asked)):
        assert asked[i] == asked[i - 1] - right[i - 1]
    (row,) = run.history
    assert row["reward"] == pytest.approx(len(right[0]) / 6)
    assert row["threshold"] == pytest.approx(max(0.5, row["reward"]))
    assert row["passed"] == sum(map(len, right)) and row["passed"] + row["never_passed"] == 6
    assert row["trajectories"] == row["trees"] == sum(map(len, asked))
    learnt = read_samples(out / "samples.parquet")
    assert len(learnt) == row["actions"] == row["passed"]
    assert {s.kind for s in learnt} == {"Right"} and {s.credit for s in learnt} == {1.0}
    assert not any(s.forced for s in learnt)


async def test_equal_rewards_pass_though_their_mean_is_above_each_of_them(tiny_model, runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("dragoman.training.algorithms.mygo.worth", lambda *_: 0.97)
    assert sum([0.97] * 3) / 3 > 0.97
    run = make_run(
        "mygo",
        tiny_model,
        runtime,
        tmp_path / "rl",
        asked=QUESTIONS[:3],
        questions=3,
        iterations=1,
        mygo=MygoParams(attempts=2),
    )
    await run.train()
    assert (run.history[0]["passed"], run.history[0]["trees"]) == (3, 3)


async def test_what_never_passes_is_counted_and_nothing_is_learnt_from_it(tiny_model, runtime, tmp_path):
    hopeless = [Question(f"h{i}", f"Which arm, number {i}?", ("neither",)) for i in range(2)]
    run = make_run(
        "mygo", tiny_model, runtime, tmp_path / "rl", asked=hopeless, iterations=2, mygo=MygoParams(attempts=3)
    )
    before = run.learner.actor.state()
    metrics = await run.train()
    assert [(r["trees"], r["passed"], r["never_passed"], r["actions"]) for r in run.history] == [(6, 0, 2, 0)] * 2
    assert metrics["iterations"] == 2 and metrics["best_iteration"] == 0 and not metrics["stopped"]
    assert all(torch.equal(before[name], weights) for name, weights in run.learner.actor.state().items())


def test_a_run_is_hopeless_after_so_many_iterations_in_a_row_in_which_nothing_passed():
    settings = RlParams(mygo=MygoParams(patience=2, attempts=4))
    rows = [{"passed": passed, "threshold": 0.75} for passed in (0, 3, 0, 0)]
    assert [bool(hopeless(rows[:n], settings)) for n in range(5)] == [False, False, False, False, True]
    assert "threshold, 0.750, in 2 iterations of up to 4 attempts; lower rl.mygo.threshold" in hopeless(rows, settings)


async def test_a_threshold_that_nobody_passes_ends_the_run_with_a_reason_and_the_warm_up(tiny_model, runtime, tmp_path):
    settings = {"iterations": 9, "mygo": MygoParams(attempts=2, threshold=2.0, patience=2)}
    run = make_run("mygo", tiny_model, runtime, tmp_path / "rl", **settings)
    metrics = await run.train()
    assert (metrics["iterations"], metrics["best_iteration"]) == (2, 0)
    assert metrics["stopped"].startswith("no trajectory has earned the threshold, 2.000, in 2 iterations")
    resumed = make_run("mygo", tiny_model, runtime, tmp_path / "rl", **settings)
    assert await resumed.train() == metrics


async def test_a_fixed_threshold_does_not_rise(tiny_model, runtime, tmp_path):
    fixed = MygoParams(threshold=0.25, progressive=False)
    run = make_run("mygo", tiny_model, runtime, tmp_path / "rl", iterations=2, mygo=fixed)
    await run.train()
    assert [row["threshold"] for row in run.history] == [0.25, 0.25]


async def test_offline_every_trajectory_is_the_warm_up_s_and_passes_by_the_first_threshold(
    tiny_model, runtime, tmp_path
):
    offline = MygoParams(threshold=0.25, attempts=3, offline=True)
    run = make_run("mygo", tiny_model, runtime, tmp_path / "rl", iterations=3, policy_lr=0.5, mygo=offline)
    by = []
    rollouts = run.rollouts.run

    async def watched(policy, *arguments, **more):
        by.append((more["out"].parent.parent.name == "rollouts", policy.version))
        return await rollouts(policy, *arguments, **more)

    object.__setattr__(run.rollouts, "run", watched)
    before = run.learner.actor.state()
    await run.train()
    assert {version for sampled, version in by if sampled} == {run.run.start.version}
    assert {version for sampled, version in by if not sampled} != {run.run.start.version}  # dev judges what has learnt
    assert [row["threshold"] for row in run.history] == [0.25] * 3
    assert not any("engine_difference" in row for row in run.history)  # which would end the run as it learns
    assert any(not torch.equal(before[name], weights) for name, weights in run.learner.actor.state().items())


async def test_a_threshold_holds_for_the_iterations_that_follow(tiny_model, runtime, tmp_path):
    run = make_run("mygo", tiny_model, runtime, tmp_path / "rl", iterations=3, mygo=MygoParams(threshold=0.25))
    await run.train()
    threshold = 0.25
    for row in run.history:
        threshold = max(threshold, row["reward"])
        assert row["threshold"] == pytest.approx(threshold)


async def test_a_price_is_taken_off_what_a_trajectory_must_earn(tiny_model, tmp_path):
    runtime = ToyRuntime()
    try:  # one step at 0.6 leaves 0.4 of a right answer, which is less than 0.5
        run = make_run(
            "mygo", tiny_model, runtime, tmp_path / "rl", iterations=1, price=0.6, mygo=MygoParams(attempts=2)
        )
        await run.train()
    finally:
        await runtime.close()
    assert run.history[0]["passed"] == 0

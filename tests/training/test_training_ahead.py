"""Drawing ahead of the learner: by which policy, at the same time, and what a kill leaves of it."""

import asyncio
import os
import signal
import time

import pytest
import torch
import toy
from toy import SETTINGS, TWO_ARMS, Killed, ToyRuntime, late_reward, make_run

from dragoman.core.errors import UserError
from dragoman.rollout.store import read_episodes
from dragoman.training import algorithms
from dragoman.training.ahead import Ahead, meanwhile
from dragoman.training.learner import Learner
from dragoman.training.settings import MygoParams
from dragoman.training.survey import engine_correction

FAR = SETTINGS.guards.model_copy(update={"max_engine_difference": 10})
"""Steps as large as those of the toy move the policy further in an iteration than an engine may be from the trainer."""
TIMED = {"rollout_seconds", "learn_seconds"}


async def test_iterations_are_drawn_one_after_the_other_and_the_rest_is_given_up():
    log = []

    async def draw(number):
        log.append(f"{number} begins")
        await asyncio.sleep(0.01 if number < 2 else 60)
        log.append(f"{number} is drawn")
        return number

    async with Ahead(draw) as ahead:
        ahead.begin([0, 1])
        ahead.begin([1, 2])
        assert [await ahead.take(0), await ahead.take(1)] == [0, 1]
        await asyncio.sleep(0.01)
    assert log == ["0 begins", "0 is drawn", "1 begins", "1 is drawn", "2 begins"]


async def test_what_goes_wrong_ahead_is_raised_where_it_is_taken():
    async def draw(number):
        if number:
            raise UserError("nothing to learn from")
        return number

    async with Ahead(draw) as ahead:
        ahead.begin([0, 1])
        await asyncio.sleep(0.01)
        assert await ahead.take(0) == 0
        with pytest.raises(UserError, match="nothing to learn from"):
            await ahead.take(1)


async def test_work_that_is_given_up_ends_at_its_next_step():
    steps = []

    def work():
        while len(steps) < 1000:
            time.sleep(0.01)
            steps.append(None)

    task = asyncio.create_task(meanwhile(work))
    while not steps:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    taken = len(steps)
    await asyncio.sleep(0.05)
    assert 0 < len(steps) == taken < 500


async def test_what_is_done_meanwhile_is_returned_or_raised():
    assert await meanwhile(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(Killed):
        await meanwhile(lambda: (_ for _ in ()).throw(Killed))


@pytest.mark.parametrize("staleness", [0, 1])
def test_ctrl_c_does_not_wait_for_what_an_iteration_learns(tiny_model, tmp_path, monkeypatch, staleness):
    steps = []

    def long(self, *arguments, **named):
        os.kill(os.getpid(), signal.SIGINT)
        while len(steps) < 3000:
            time.sleep(0.01)
            steps.append(None)

    monkeypatch.setattr(Learner, "learn", long)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(trained(tiny_model, tmp_path / "rl", staleness, iterations=2))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(steps) < 1000


def drew(out, iterations: int) -> list[str]:
    """The fingerprint of the policy that drew each iteration."""
    paths = [out / "rollouts" / f"{number:04d}" / "episodes.jsonl" for number in range(iterations)]
    found = [{episode.config["proxy"] for episode in read_episodes(path)} for path in paths]
    assert all(len(one) == 1 for one in found)
    return [one.pop() for one in found]


async def trained(model, out, staleness: int, algorithm: str = "ppo", **changes):
    runtime = ToyRuntime()
    try:
        changes |= {"concurrency": 1, "max_staleness": staleness, "guards": FAR}
        run = make_run(algorithm, model, runtime, out, **changes)
        return run, await run.train()
    finally:
        await runtime.close()


async def test_each_iteration_is_drawn_by_the_policy_of_so_many_before_it(tiny_model, tmp_path):
    policies = {}
    for staleness in (0, 1, 2):
        await trained(tiny_model, tmp_path / str(staleness), staleness, iterations=4)
        policies[staleness] = drew(tmp_path / str(staleness), 4)
        assert not (tmp_path / str(staleness) / "current").exists()
    assert len(set(policies[0])) == 4
    a, b, c = policies[1][0], policies[1][2], policies[1][3]
    assert policies[1] == [a, a, b, c] and len({a, b, c}) == 3
    assert policies[2] == [a, a, a, b]
    assert policies[0][:2] == [a, b]  # the first iteration is alike, since nothing was learnt before it


async def test_the_next_questions_are_drawn_while_the_learner_is_at_work(tiny_model, tmp_path, monkeypatch):
    overlapped, original = [], Learner.learn

    def slow(self, *arguments, **named):
        path = tmp_path / "rl" / "rollouts" / f"{len(overlapped) + 1:04d}" / "episodes.jsonl"
        deadline = time.monotonic() + 300
        while not path.exists() and len(overlapped) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        overlapped.append(path.exists())
        return original(self, *arguments, **named)

    monkeypatch.setattr(Learner, "learn", slow)
    await trained(tiny_model, tmp_path / "rl", 1, iterations=3)
    assert overlapped == [True, True, False]  # after the last there is nothing to draw


@pytest.mark.parametrize(
    ("at", "algorithm", "staleness"),
    [
        ("learn", "mygo", 1),
        ("release", "ppo", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("learn", *of) for of in (("ppo", 1), ("grpo", 2), ("trajectory_grpo", 1))),
                *(("release", *of) for of in (("grpo", 2), ("trajectory_grpo", 1), ("mygo", 1))),
            )
        ),
    ],
)
async def test_killed_and_started_again_it_comes_to_the_same_numbers(
    tiny_model, tmp_path, monkeypatch, at, algorithm, staleness
):
    whole, unbroken = await trained(tiny_model, tmp_path / "unbroken", staleness, algorithm, iterations=4)
    calls, target = 0, {"learn": Learner, "release": toy.ToyRuntime}[at]
    original = getattr(target, at)

    def dying(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return original(*arguments, **named)

    monkeypatch.setattr(target, at, dying)
    with pytest.raises(Killed):
        await trained(tiny_model, tmp_path / "broken", staleness, algorithm, iterations=4)
    rest, resumed = await trained(tiny_model, tmp_path / "broken", staleness, algorithm, iterations=4)
    assert resumed == unbroken
    assert [{k: v for k, v in row.items() if k not in TIMED} for row in rest.history] == [
        {k: v for k, v in row.items() if k not in TIMED} for row in whole.history
    ]


async def test_weights_that_other_roles_keep_are_not_closed_under_a_draw(tiny_model, tmp_path, monkeypatch):
    released, original = [], ToyRuntime.release

    async def release(self, name, weights):
        released.extend(path for path, _ in weights.groups())
        await original(self, name, weights)

    monkeypatch.setattr(ToyRuntime, "release", release)
    await trained(tiny_model, tmp_path / "rl", 2, iterations=4, roles=("choose",), own_weights=True)
    assert [path.name for path in released] == ["0001"]  # while iteration 3 was drawn, which asks the base too


@pytest.mark.slow
async def test_it_finds_the_better_of_two_arms_by_what_an_earlier_policy_drew(tiny_model, runtime, tmp_path):
    run = make_run("grpo", tiny_model, runtime, tmp_path / "rl", **TWO_ARMS, max_staleness=1, guards=FAR)
    await run.train()
    assert late_reward(run) > 0.8 > run.history[0]["reward"]


async def test_each_token_is_weighed_by_how_much_likelier_it_has_become(tiny_model, free_samples):
    """The stored log-probability is the engine's own of that token; the learner has moved since."""
    settings = SETTINGS.model_copy(
        update={"exploration": SETTINGS.exploration.model_copy(update={"temperature": 0.7}), "importance_cap": 1.5}
    )
    own = Learner(algorithms.find("grpo"), tiny_model, settings, seed=0)
    with torch.no_grad():
        for weights in own.actor.trainable():
            weights.add_(0.02)
    experience, figures = own.prepare(free_samples)
    seen = own.survey(free_samples)
    assert figures["engine_difference"] > 0.01  # so the guard bounds how far the two may be apart
    for row, sample in enumerate(free_samples):
        for place in seen.free[row].nonzero()[:, 0].tolist():
            ratio = float((seen.old[row, place] - sample.logprobs[place]).exp())
            assert float(experience.correction[row, place]) == pytest.approx(min(ratio, 1.5), rel=1e-4)
    assert torch.equal(experience.correction, engine_correction(seen.old, seen.engine, seen.free, cap=1.5))


async def test_what_mygo_drew_ahead_is_not_held_against_the_engine(tiny_model, tmp_path):
    run, _ = await trained(tiny_model, tmp_path / "rl", 1, "mygo", iterations=2)
    assert all(row["actions"] and "engine_difference" not in row for row in run.history)


def test_self_training_ahead_is_refused(tiny_model, runtime, tmp_path):
    with pytest.raises(UserError, match=r"rl\.max_staleness: self-training learns from what the policy itself drew"):
        make_run("selftrain", tiny_model, runtime, tmp_path / "rl", max_staleness=1)


def test_offline_mygo_ahead_is_refused(tiny_model, runtime, tmp_path):
    """The warm-up draws everything: nothing would be gained, and its engine would be freed while it draws."""
    with pytest.raises(UserError, match=r"rl\.max_staleness: offline, the warm-up draws all trajectories"):
        make_run("mygo", tiny_model, runtime, tmp_path / "rl", max_staleness=1, mygo=MygoParams(offline=True))

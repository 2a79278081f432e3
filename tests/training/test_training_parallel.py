"""Training by two real processes on a tiny model: the same curves and weights as by one, and what a death leaves."""

import os
import random
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from toy import SETTINGS

from dragoman.core.errors import Fault
from dragoman.training import algorithms
from dragoman.training.learner import Learner
from dragoman.training.parallel import Together

pytestmark = pytest.mark.process


def recipe(name, tiny_model, **changes):
    settings = SETTINGS.model_copy(update={"micro_batch_tokens": 100, "epochs": 2, **changes})
    return partial(Learner, algorithms.find(name), tiny_model, settings, seed=0)


def learnt(make, batch, processes):
    """What a learner has seen and become after two iterations."""
    own = make()
    with Together(own, processes, make) as learners:
        seen = [learners.call("iterate", batch, progress=i / 2, shuffle=random.Random(i)) for i in range(2)]
    return seen, own.state()


def assert_equal(one, other):
    for seen, again in zip(one[0], other[0], strict=True):
        assert seen.keys() == again.keys()
        for name, value in seen.items():
            assert value == pytest.approx(again[name], rel=2e-3, abs=1e-5), name
    for part in ("actor", "critic"):
        for name, weights in (one[1][part] or {}).items():
            torch.testing.assert_close(weights, other[1][part][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("ppo", {}), ("grpo", {"adapter": None}), ("mygo", {"micro_batch_tokens": 10_000})],
    ids=["ppo", "grpo, all weights", "less to do than processes"],
)
def test_two_processes_learn_as_one(tiny_model, toy_samples, name, changes):
    batch = [replace(sample, credit=sample.credit * (i + 1)) for i, sample in enumerate(toy_samples)]
    make = recipe(name, tiny_model, **changes)
    assert_equal(learnt(make, batch, 2), learnt(make, batch, 1))


def test_a_process_that_is_killed_ends_the_others_with_a_reason(tiny_model, toy_samples):
    make = recipe("ppo", tiny_model)
    own = make()
    with Together(own, 2, make) as learners:
        learners.call("iterate", toy_samples, progress=0.0, shuffle=random.Random(0))
        ((process, _),) = learners._others
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Fault, match=r"of the 2 processes that train, process 1 ended with -9.*the same command"):
            learners.call("iterate", toy_samples, progress=0.5, shuffle=random.Random(0))
    assert own.share.processes == 1 and not process.is_alive()

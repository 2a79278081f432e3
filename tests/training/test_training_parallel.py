"""Training by two real processes on a tiny model: the same curves and weights as by one, and what a death leaves."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from toy import KNOWN, SETTINGS, AtMarks, ToyRuntime, make_run, training_run

from dragoman.core.errors import Fault, UserError
from dragoman.engines.local import Vocabulary
from dragoman.registry.policy import find_policy
from dragoman.rollout.exploration import GREEDY
from dragoman.rollout.scheduler import roll_out
from dragoman.rollout.store import EpisodeStore
from dragoman.training import algorithms, imitation, sft
from dragoman.training.learner import Learner
from dragoman.training.parallel import Share, Together, in_each
from dragoman.training.seeds import labelled
from dragoman.training.settings import AdapterParams, SftParams

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
            # A KL is a mean of small log-ratios that nearly cancel: on Zen 5 rounding sets it 2e-5 apart, of 5e-3.
            assert value == pytest.approx(again[name], rel=2e-3, abs=5e-5 if name == "kl" else 1e-5), name
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


def test_a_process_that_differs_or_is_killed_ends_the_others_with_a_reason(tiny_model, toy_samples):
    make = recipe("ppo", tiny_model)
    own = make()
    with Together(own, 2, make) as learners:
        learners.call("iterate", toy_samples, progress=0.0, shuffle=random.Random(0))
        with torch.no_grad():
            own.trainable()[0].add_(0.01)
        with pytest.raises(Fault, match="do not agree on the weights"):
            learners.call("set_progress", 0.5)
        ((process, _),) = learners._others
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Fault, match=r"of the 2 processes that train, process 1 ended with -9.*the same command"):
            learners.call("iterate", toy_samples, progress=0.5, shuffle=random.Random(0))
    assert own.share.processes == 1 and not process.is_alive()


ORPHAN = """
import os, random, signal, sys
from functools import partial
from pathlib import Path
from dragoman.training import algorithms
from dragoman.training.learner import Learner
from dragoman.training.parallel import Together
from dragoman.training.settings import RlParams

settings = RlParams(dtype="float32", critic="head")
make = partial(Learner, algorithms.find("ppo"), Path(sys.argv[1]), settings, seed=0)
with Together(make(), 2, make) as learners:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_others_end_when_the_command_is_killed(tiny_model):
    """What is captured ends when the last process that writes there has ended: with one left, this would time out."""
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, str(tiny_model)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert "process 1 of 2 that train: process 0 has ended" in done.stderr


@pytest.fixture
async def marked():
    opened = ToyRuntime(AtMarks())
    yield opened
    await opened.close()


async def test_a_run_that_a_death_cut_short_goes_on_and_comes_to_what_one_process_does(
    tiny_model, marked, tmp_path, monkeypatch
):
    """PPO at marks. Half of it with two processes, and the rest with two others."""
    changes = {"micro_batch_tokens": 100, "iterations": 3, "critic": "tree"}
    alone = make_run("ppo", tiny_model, marked, tmp_path / "one", **changes)
    await alone.train()
    cut = make_run("ppo", tiny_model, marked, tmp_path / "two", **changes, processes=2)
    original = type(cut)._checkpoint

    def checkpoint_and_kill(self):
        original(self)
        if self.history:  # that of the end of an iteration
            os.kill(self.learners._others[0][0].pid, signal.SIGKILL)

    monkeypatch.setattr(type(cut), "_checkpoint", checkpoint_and_kill)
    with pytest.raises(Fault, match="process 1 ended with -9"):
        await cut.train()
    monkeypatch.setattr(type(cut), "_checkpoint", original)
    resumed = make_run("ppo", tiny_model, marked, tmp_path / "two", **changes, processes=2)
    await resumed.train()
    assert len(resumed.history) == 3 and resumed.history[0] == cut.history[0]
    assert sum(row["actions"] for row in resumed.history) > 0
    for row, other in zip(resumed.history, alone.history, strict=True):
        for name in row.keys() - {"rollout_seconds", "learn_seconds"}:
            assert row[name] == pytest.approx(other[name], rel=2e-3, abs=1e-5), name
    for name, weights in resumed.learner.actor.state().items():
        torch.testing.assert_close(weights, alone.learner.actor.state()[name], rtol=1e-3, atol=1e-5)


async def test_two_processes_imitate_as_one(tiny_model, marked, tmp_path):
    system, backends = marked.open(f"toy@{tiny_model}")
    with EpisodeStore(tmp_path / "seen") as store:
        oracle = GREEDY.model_copy(update={"oracle": True})
        episodes = await roll_out(KNOWN, "toy", system, backends, store, exploration=oracle)
    states, losses, weights = labelled(episodes, Vocabulary(tiny_model, None)), [], []
    for processes in (1, 2):
        settings = SftParams(
            adapter=AdapterParams(rank=8, alpha=16), lr=0.005, batch_size=5, epochs=3, rounds=1, visits=4, dev_questions=2,
            dtype="float32", micro_batch_tokens=100, processes=processes,
        )  # fmt: skip
        out = tmp_path / str(processes)
        await imitation.train(training_run(tiny_model, marked, out, KNOWN[:2]), states, KNOWN, settings)
        losses.append([float(row["loss"]) for row in csv.DictReader((out / "loss.csv").open())])
        weights.append(load_file(find_policy(str(out)).of("choose") / "model.safetensors"))
    assert losses[0][0] > 2 * losses[0][-1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=2e-5)
    for name, learnt in weights[0].items():
        torch.testing.assert_close(learnt, weights[1][name], rtol=1e-3, atol=1e-4)


def test_two_processes_warm_up_on_text_as_one(tiny_model, toy_samples, tmp_path):
    """TRL divides the work. Six steps of two actions, with one process and with two."""
    right, losses, weights = [s for s in toy_samples if s.kind == "Right"], [], []
    for processes in (1, 2):
        settings = SftParams(
            adapter=AdapterParams(rank=8, alpha=16), lr=0.01, batch_size=2, micro_batch=1, epochs=2, dtype="float32",
            processes=processes,
        )  # fmt: skip
        seen = in_each(processes, sft._fine_tune, tiny_model, right, settings, 0, tmp_path / str(processes))
        losses.append([row["loss"] for row in seen])
        weights.append(load_file(tmp_path / str(processes) / "checkpoint-6" / "adapter_model.safetensors"))
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], rel=1e-3)
    for name, learnt in weights[0].items():
        torch.testing.assert_close(learnt, weights[1][name], rtol=1e-3, atol=1e-4)


def end_one_of_two() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(200)


def test_a_process_of_trl_that_is_killed_ends_the_others():
    with pytest.raises(Fault, match=r"process 1 ended: .*SIGKILL"):
        in_each(2, end_one_of_two)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_launcher_that_starts_the_command_several_times_is_refused(monkeypatch, processes):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = pytest.raises(UserError, match=r"Start it once.*rl\.processes")
    with refused, Together(SimpleNamespace(share=Share()), processes, list):
        pass
    with refused:
        in_each(processes, list)

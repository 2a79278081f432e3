"""The learner and the whole loop, on a tiny model and a toy system with two arms."""

import json
import random
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import toy
from tiny import VOCABULARY
from toy import QUESTIONS, SETTINGS, TWO_ARMS, TwoArms, late_reward

from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.registry.policy import find_policy
from dragoman.registry.trained_with import trained_with
from dragoman.training import algorithms
from dragoman.training.batch import AllowedTokens, collate, micro_batches, rows, unpack
from dragoman.training.learner import Learner
from dragoman.training.loop import Loop
from dragoman.training.selection import better, questions_of, worth
from dragoman.training.settings import RlParams


def learner(tiny_model, **changes) -> Learner:
    return Learner(algorithms.find("ppo"), tiny_model, SETTINGS.model_copy(update=changes), seed=0)


def test_trainer_and_engine_agree_on_log_probabilities(tiny_model, free_samples):
    """Those that were sampled from, under the grammar and at the temperature: the two arms of a state share a whole."""
    own = learner(tiny_model, exploration=SETTINGS.exploration.model_copy(update={"temperature": 0.7}))
    seen, (_, stats) = own.survey(free_samples), own.prepare(free_samples)
    assert (seen.reported & seen.free).any(1).all()
    assert 0 < stats["engine_difference"] < 1e-4
    assert stats["engine_ratio_p05"] == pytest.approx(1, abs=1e-3)
    assert stats["kl"] == pytest.approx(0, abs=1e-6)  # the policy still is its reference


def test_what_an_engine_says_of_a_forced_action_is_left_out(tiny_model, toy_samples):
    """It was drawn among actions of its kind alone, so that probability is not the policy's."""
    seen = learner(tiny_model).survey(toy_samples)
    assert all(sample.forced and len(sample.logprobs) == sample.length for sample in toy_samples)
    assert not seen.reported.any() and (seen.engine == seen.old).all()


def test_under_a_grammar_only_the_allowed_tokens_share_the_probability(tiny_model, toy_samples):
    own = learner(tiny_model)
    (batch,) = own.batches(toy_samples, range(12))
    with torch.no_grad():
        policy, unbound = own.actor(batch), own.actor(replace(batch, allowed=None))
    choices = unpack(batch.allowed, VOCABULARY).sum(-1)[batch.mask].to(policy.entropy.device)
    logprobs, raw, entropy = (x[batch.mask] for x in (policy.logprobs, unbound.logprobs, policy.entropy))
    assert (logprobs >= raw - 1e-5).all() and (logprobs > raw + 1).any()
    assert (entropy <= choices.log() + 1e-4).all()
    assert (choices == 1).any() and logprobs[choices == 1].abs().max() < 1e-6  # no choice, no gradient
    assert raw[choices == 1].max() < -0.1


def test_siblings_in_one_row_do_not_see_each_other(tiny_model, toy_samples):
    own = learner(tiny_model)
    together, _ = own.prepare(toy_samples)
    for i, sample in enumerate(toy_samples):
        alone, _ = own.prepare([sample])
        width = len(sample.completion_ids)
        assert alone.old[0, :width].tolist() == pytest.approx(together.old[i, :width].tolist(), abs=1e-4)


def test_micro_batches_of_one_row_equal_one_of_all(tiny_model, toy_samples):
    gradients = []
    for tokens in (1, 10_000):
        own = learner(tiny_model, micro_batch_tokens=tokens, max_grad_norm=1e9)
        experience, _ = own.prepare(toy_samples)
        own.step(toy_samples, range(len(toy_samples)), experience)
        gradients.append([p.grad.clone() for p in (*own.actor.trainable(), *own.critic.trainable())])
    assert len(list(micro_batches(rows(toy_samples, range(12)), 1))) == 6
    assert len(list(micro_batches(rows(toy_samples, range(12)), 10_000))) == 1
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("adapter", [SETTINGS.adapter, None], ids=["lora", "full"])
@pytest.mark.parametrize("critic", ["head", "separate", "tree"])
def test_all_that_is_trainable_changes_and_nothing_else(tiny_model, toy_samples, adapter, critic):
    own = learner(tiny_model, adapter=adapter, critic=critic, epochs=2)
    assert (own.critic is None) == (critic == "tree")
    modules = [m for m in (own.actor, own.critic) if m is not None]
    before = {n: p.detach().clone() for m in modules for n, p in m.named_parameters(prefix=type(m).__name__)}
    experience, _ = own.prepare(toy_samples)
    own.learn(toy_samples, experience, shuffle=random.Random(0))
    trainable = 0
    for module in modules:
        for name, parameter in module.named_parameters(prefix=type(module).__name__):
            changed = not torch.equal(before[name], parameter)
            # the language head of a model that is used as a critic's trunk is not part of it
            idle = name.startswith("Critic.trunk") and parameter.grad is None
            assert changed == (parameter.requires_grad and not idle), name
            trainable += changed
    assert trainable > 4
    if own.reference is not None:
        assert all(p.grad is None for p in own.reference.parameters())


def test_the_grammar_s_masks_allow_what_was_drawn_and_forbid_what_was_not(tiny_model, toy_samples):
    allowed = AllowedTokens(tiny_model)
    for sample in toy_samples:
        bits = allowed(sample)
        table = unpack(bits, VOCABULARY)
        assert table.shape == (len(sample.completion_ids), VOCABULARY)
        assert all(table[m, token] for m, token in enumerate(sample.completion_ids))
        assert table.sum(1).max() < 100  # two arms, split into tokens in some ways
    batch = collate(rows(toy_samples, [0, 1]), toy_samples, allowed, 0)
    assert batch.allowed is not None and batch.mask.sum() == sum(len(toy_samples[i].completion_ids) for i in (0, 1))


def test_the_masks_of_a_micro_batch_are_all_that_is_held_of_a_batch(tiny_model, toy_samples, monkeypatch):
    own, masks, most = learner(tiny_model, micro_batch_tokens=100), [], []
    computed = AllowedTokens.__call__

    def counted(self, sample):
        bits = computed(self, sample)
        masks.append(weakref.ref(bits))
        most.append(sum(mask() is not None for mask in masks))
        return bits

    monkeypatch.setattr(AllowedTokens, "__call__", counted)
    largest = max(sum(len(row.actions) for row in group) for group in micro_batches(rows(toy_samples, range(12)), 100))
    experience, _ = own.prepare(toy_samples)
    assert len(masks) == 12 and not any(mask() is not None for mask in masks)
    own.learn(toy_samples, experience, shuffle=random.Random(0))
    assert max(most) <= largest < 12 and not any(mask() is not None for mask in masks)


@pytest.mark.parametrize(("name", "refused"), [("ppo", True), ("mygo", False), ("selftrain", False)])
def test_a_tree_without_siblings_is_refused_as_a_critic_by_the_algorithm_that_has_one(name, refused):
    single = RlParams(critic="tree", exploration={"breadth": [1], "force": 0})
    with pytest.raises(UserError, match=r"rl\.critic: .* raise rl\.exploration\.breadth") if refused else nullcontext():
        algorithms.find(name).check(single)


def make_run(tiny_model, runtime, out, **changes):
    return toy.make_run("ppo", tiny_model, runtime, out, **changes)


@pytest.mark.parametrize("critic", ["head", "tree"])
async def test_ppo_finds_the_better_of_two_arms(tiny_model, runtime, tmp_path, critic):
    run = make_run(tiny_model, runtime, tmp_path / "rl", **TWO_ARMS, critic=critic)
    await run.train()
    assert late_reward(run) > 0.8  # of distinct leaves: one wrong draw in a tree of four counts as half
    assert run.dev_history[-1]["dev_reward"] == 1.0
    assert run.dev_history[-1]["share_Right"] == 1.0


async def test_what_is_learnt_and_kept_is_the_reward_with_its_shaping(tiny_model, runtime, tmp_path):
    run = make_run(tiny_model, runtime, tmp_path / "rl", **TWO_ARMS, critic="tree", shaping="-2 * cover_em")
    metrics = await run.train()
    assert late_reward(run) < 0.2 and run.dev_history[-1]["share_Left"] == 1.0
    assert metrics["dev_reward"] == run.dev_history[-1]["dev_worth"] == 0.0  # the other arm would have 1 and -1


async def test_a_policy_is_named_after_its_content_and_tells_where_it_comes_from(tiny_model, runtime, tmp_path):
    metrics = await make_run(tiny_model, runtime, tmp_path / "rl", iterations=1).train()
    pointer = json.loads((tmp_path / "rl" / "policy.json").read_text())
    folder = tmp_path / "rl" / pointer["folder"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == pointer["version"] == metrics["policy"] == folder.name
    assert manifest["sha256"].startswith(manifest["version"])
    assert {"stage", "system", "base", "parent", "data", "code", "parameters", "metrics"} <= set(manifest)
    assert not list((tmp_path / "rl").glob("*.pt"))


async def test_a_policy_of_rl_tells_the_bias_it_learnt_with_and_not_that_of_its_warm_up(tiny_model, runtime, tmp_path):
    @dataclass(frozen=True)
    class Leaning(TwoArms):
        turned_after_training = frozenset({"bias"})
        bias: float = 0.0

    runtime.system = Leaning(2.0)
    start = find_policy(str(tiny_model))
    start = replace(start, manifest={**start.manifest, "stage": "sft", "trained_with": trained_with(Leaning())})
    await make_run(tiny_model, runtime, tmp_path / "rl", iterations=1, warm_up=start).train()
    assert find_policy(str(tmp_path / "rl")).manifest["trained_with"]["turned"] == {"bias": 2.0}


async def test_a_collapsed_run_stops_and_keeps_the_best(tiny_model, runtime, tmp_path):
    run = make_run(tiny_model, runtime, tmp_path / "rl", guards=SETTINGS.guards.model_copy(update={"min_entropy": 9.0}))
    metrics = await run.train()
    assert metrics["iterations"] == 1 and "entropy" in metrics["stopped"]
    assert metrics["best_iteration"] == 0 and (tmp_path / "rl" / "policy.json").is_file()


async def test_a_run_whose_time_is_up_keeps_the_best_policy_and_is_finished(tiny_model, runtime, tmp_path):
    run = make_run(tiny_model, runtime, tmp_path / "rl", max_minutes=1e-6)
    metrics = await run.train()
    assert metrics["iterations"] == 1 < SETTINGS.iterations and metrics["stopped"] == "rl.max_minutes is 1e-06"
    assert metrics["last"]["iteration"] == 1 and (tmp_path / "rl" / "policy.json").is_file()
    assert await make_run(tiny_model, runtime, tmp_path / "rl").train() == metrics


async def test_a_run_that_goes_on_when_its_time_is_up_ends_without_another_iteration(
    tiny_model, runtime, tmp_path, monkeypatch
):
    checkpoint = Loop._checkpoint

    def cut(loop: Loop) -> None:
        checkpoint(loop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "_checkpoint", cut)
        await make_run(tiny_model, runtime, tmp_path / "rl").train()
    metrics = await make_run(tiny_model, runtime, tmp_path / "rl", max_minutes=1e-6).train()
    assert metrics["iterations"] == 1 and metrics["stopped"] == "rl.max_minutes is 1e-06"


def test_of_two_policies_as_good_the_one_with_fewer_steps_is_kept():
    def episode(steps: int, reward: float | None) -> SimpleNamespace:
        return SimpleNamespace(trajectories=[SimpleNamespace(steps=["step"] * steps, rewards={"r": reward})])

    slow, quick = ([worth(episode(steps, r), "r", 0.02) for r in (0.0, 1.0)] for steps in (7, 3))
    assert quick == pytest.approx([-0.06, 0.94]) and slow == pytest.approx([-0.14, 0.86])
    assert better(quick, slow, 0.0) and not better(slow, quick, 0.0)
    assert worth(episode(3, None), "r", 0.02) is None


def test_no_question_comes_again_before_a_pass_is_over():
    first = [q.id for i in range(3) for q in questions_of(i, QUESTIONS, 2, seed=1)]
    second = [q.id for i in range(3, 6) for q in questions_of(i, QUESTIONS, 2, seed=1)]
    assert sorted(first) == sorted(second) == sorted(q.id for q in QUESTIONS) and first != second
    assert first != [q.id for i in range(3) for q in questions_of(i, QUESTIONS, 2, seed=2)]
    assert len(questions_of(7, QUESTIONS, 100, seed=1)) == 6


def test_a_curriculum_goes_from_easy_to_hard_and_chance_leaves_out_what_fills_no_iteration():
    ranks = {f"q{i}": i // 3 for i in range(9)}  # three of each
    questions = [Question(id, id, ("x",)) for id in (*ranks, "unplanned")]
    asked = [[q.id for i in range(2) for q in questions_of(2 * turn + i, questions, 4, 1, ranks)] for turn in range(12)]
    for ids in asked:
        assert len(set(ids)) == 8 and "unplanned" not in ids and ids == sorted(ids, key=ranks.__getitem__)
    assert {id for ids in asked for id in ranks if id not in ids} >= {"q0", "q8"}  # now an easy one, now a hard one

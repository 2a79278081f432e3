"""A run trains one entry of a policy set, and publishes the set with the others as they were."""

import pytest
import torch
from safetensors.torch import load_file
from toy import make_run

from dragoman.core.errors import UserError
from dragoman.engines.fetch import weights_sha256
from dragoman.registry.policy import PolicySet, find_policy
from dragoman.training import loop
from dragoman.training.policies import TrainedPolicy, trained_entries
from dragoman.training.settings import RlParams


def policy_set(**weights):
    return PolicySet("abc", {role.replace("shared", "*"): path for role, path in weights.items()}, {})


def test_without_roles_the_one_model_of_a_set_is_trained(tmp_path):
    assert trained_entries(policy_set(shared=tmp_path), ()) == ("*",)
    assert trained_entries(policy_set(router=tmp_path, filter=tmp_path), ()) == ("router", "filter")


def test_the_entry_that_is_trained_is_the_one_behind_the_roles(tmp_path):
    several = policy_set(shared=tmp_path / "a", filter=tmp_path / "b")
    assert trained_entries(several, ["filter"]) == ("filter",)
    assert trained_entries(several, ["router", "decide"]) == ("*",)


@pytest.mark.parametrize("roles", [(), ("router", "filter")])
def test_roles_with_different_weights_are_not_trained_in_one_run(tmp_path, roles):
    with pytest.raises(UserError, match=r"weights of their own for these roles: \*; filter.*rl\.roles"):
        trained_entries(policy_set(shared=tmp_path / "a", filter=tmp_path / "b"), roles)


def test_roles_may_get_weights_of_their_own(tmp_path):
    assert trained_entries(policy_set(shared=tmp_path), ["judge"], own=True) == ("judge",)
    several = policy_set(shared=tmp_path / "a", filter=tmp_path / "b")
    with pytest.raises(UserError, match=r"rl\.roles or sft\.roles"):
        trained_entries(several, ["router", "filter"], own=True)
    with pytest.raises(ValueError, match=r"own_weights: for which roles\? Name them in rl\.roles"):
        RlParams(own_weights=True)


@pytest.mark.parametrize("start", ["policies/abc", "."])
def test_a_policy_in_the_folder_that_would_be_emptied_for_the_new_one_is_refused(tmp_path, start):
    out = tmp_path / "rl"
    with pytest.raises(UserError, match=r"rl: holds the policy to start from .*give another folder by --out"):
        TrainedPolicy(policy_set(shared=out / start), (), out)
    TrainedPolicy(policy_set(shared=tmp_path / "rl-before" / start), (), out)


async def test_a_role_with_weights_of_its_own_leaves_the_others_what_they_shared(
    tiny_model, runtime, tmp_path, monkeypatch
):
    out = tmp_path / "rl"
    run = make_run("mygo", tiny_model, runtime, out, roles=("choose",), own_weights=True, iterations=2, dev_every=1)
    monkeypatch.setattr(loop, "better", lambda new, old, errors: True)  # the last is the best
    await run.train()
    published = find_policy(str(out))
    assert set(published.weights) == {"*", "choose"}
    assert (
        weights_sha256(published.of("another")) == weights_sha256(tiny_model) != weights_sha256(published.of("choose"))
    )


async def test_a_trained_entry_is_replaced_and_the_others_are_carried_over(tiny_model, runtime, tmp_path, monkeypatch):
    out = tmp_path / "rl"
    start = PolicySet("abc", {"choose": tiny_model, "other": other_model(tiny_model, tmp_path)}, {})
    run = make_run("mygo", tiny_model, runtime, out, warm_up=start, roles=("choose",), iterations=2, dev_every=1)
    monkeypatch.setattr(loop, "better", lambda new, old, errors: True)  # the last is the best
    metrics = await run.train()
    published = find_policy(str(out))
    assert published.version == metrics["policy"] and set(published.weights) == {"choose", "other"}
    before, after = (load_file(s.of("choose") / "model.safetensors") for s in (start, published))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    untouched = [s.of("other") / "model.safetensors" for s in (start, published)]
    assert untouched[0].read_bytes() == untouched[1].read_bytes()


@pytest.mark.parametrize("best", [0, 1], ids=["warm-up", "first iteration"])
async def test_of_two_iterations_that_change_the_weights_those_that_were_best_before_are_published(
    tiny_model, runtime, tmp_path, monkeypatch, best
):
    out = tmp_path / "rl"
    run = make_run("mygo", tiny_model, runtime, out, iterations=2, dev_every=1)
    weights = {0: weights_sha256(tiny_model)}

    def judged(new, old, errors):
        weights[run.iteration] = weights_sha256(run.policy.folder(run.iteration))
        return run.iteration == best

    monkeypatch.setattr(loop, "better", judged)
    metrics = await run.train()
    assert sorted(weights) == [0, 1, 2] and len(set(weights.values())) == 3  # each iteration has changed them
    assert weights_sha256(find_policy(str(out)).of("choose")) == weights[best]
    assert metrics["best_iteration"] == best
    assert metrics["dev_reward"] == next(row["dev_reward"] for row in run.dev_history if row["iteration"] == best)


def other_model(tiny_model, tmp_path):
    """The same weights in a folder of their own, but for one number."""
    import shutil

    from safetensors.torch import save_file

    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder

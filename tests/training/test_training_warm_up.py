"""What begins a warm-up anew, and what ends it: the candidate that is worth most on the dev questions is published."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file
from toy import KNOWN, ToyRuntime, training_run

from dragoman.engines.fetch import weights_sha256
from dragoman.registry.policy import find_policy
from dragoman.training.policies import TrainedPolicy
from dragoman.training.settings import SftParams
from dragoman.training.warm_up import WarmUp, begin


@pytest.mark.parametrize(("worths", "best"), [((0.5, 1.0, 0.5), 2), ((1.0, 0.0, 0.5), 1), ((0.0, 0.5, 1.0), 3)])
def test_of_three_candidates_the_one_that_is_worth_most_on_dev_is_published(tiny_model, tmp_path, worths, best):
    out = tmp_path / "sft"
    policy = TrainedPolicy(find_policy(str(tiny_model)), (), out)
    warm_up = WarmUp(
        samples=(), too_long=4, policy=policy, manifest={"stage": "sft"}, dev=KNOWN[:2], out=out, finished=None
    )
    history = [{"epoch": epoch, "dev_reward": 0.25, "dev_worth": worth} for epoch, worth in enumerate(worths, start=1)]
    each = [(worth, worth) for worth in worths]
    candidates = {row["epoch"]: candidate(tiny_model, warm_up.candidate(row["epoch"]), row["epoch"]) for row in history}
    assert len(set(candidates.values())) == 3
    metrics = warm_up.finish("epoch", history, each, [{"loss": 0.9}, {"loss": 0.3}])
    published = find_policy(str(out))
    assert weights_sha256(published.of("choose")) == candidates[best]
    assert metrics == {
        "samples": 0, "too_long": 4, "roles": {}, "best_epoch": best, "dev_reward": 0.25, "dev_worth": 1.0, "dev_questions": 2, "loss": 0.3,
        "policy": published.version,
    }  # fmt: skip
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert published.manifest["stage"] == "sft" and published.manifest["metrics"]["best_epoch"] == best
    assert len((out / "dev.csv").read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize(
    ("worths", "best"),
    [
        ([(1.0, 0.0), (1.0, None)], 0),  # the second has no score of what the first got wrong
        ([(None, 0.0), (1.0, 1.0)], 1),
        ([(1.0, None), (None, 0.0)], 0),  # none in common: by the mean of each
    ],
)
def test_candidates_are_compared_on_the_questions_that_all_of_them_have_a_score_of(tiny_model, tmp_path, worths, best):
    out = tmp_path / "sft"
    policy = TrainedPolicy(find_policy(str(tiny_model)), (), out)
    warm_up = WarmUp(samples=(), too_long=0, policy=policy, manifest={}, dev=KNOWN[:2], out=out, finished=None)
    history = []
    for number, own in enumerate(worths):
        known = [worth for worth in own if worth is not None]
        history.append({"round": number, "dev_reward": 0.0, "dev_worth": sum(known) / len(known)})
        candidate(tiny_model, warm_up.candidate(number), number)
    assert warm_up.finish("round", history, worths, [])["best_round"] == best


async def test_another_judge_of_the_shaping_starts_a_warm_up_anew(tiny_model, toy_samples, tmp_path):
    async def begun(judge: str) -> None:
        runtime = ToyRuntime()
        opened = runtime.open

        def judged(*arguments):
            system, backends = opened(*arguments)
            return system, replace(backends, open_judge=lambda: SimpleNamespace(fingerprint=judge))

        runtime.open = judged
        run = training_run(tiny_model, runtime, tmp_path / "sft", KNOWN[:2])
        await begin("dragoman.training.sft", run, toy_samples, SftParams(shaping="0.5 * judge"))
        await runtime.close()

    await begun("one")
    (tmp_path / "sft" / "learnt").touch()
    await begun("one")
    assert (tmp_path / "sft" / "learnt").exists()
    await begun("another")
    assert not (tmp_path / "sft" / "learnt").exists()


def candidate(model, folder, number) -> str:
    """The model with one number moved by so much, in that folder: the hash of its weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += number
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return weights_sha256(folder)

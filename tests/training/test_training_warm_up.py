"""What ends a warm-up: the candidate that is worth most on the dev questions is published."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file
from toy import KNOWN

from dragoman.engines.fetch import weights_sha256
from dragoman.registry.policy import find_policy
from dragoman.training.policies import TrainedPolicy
from dragoman.training.warm_up import WarmUp


@pytest.mark.parametrize(("worths", "best"), [((0.5, 1.0, 0.5), 2), ((1.0, 0.0, 0.5), 1), ((0.0, 0.5, 1.0), 3)])
def test_of_three_candidates_the_one_that_is_worth_most_on_dev_is_published(tiny_model, tmp_path, worths, best):
    out = tmp_path / "sft"
    policy = TrainedPolicy(find_policy(str(tiny_model)), (), out)
    warm_up = WarmUp(
        samples=(), too_long=4, policy=policy, manifest={"stage": "sft"}, dev=KNOWN[:2], out=out, finished=None
    )
    history = [{"epoch": epoch, "dev_reward": 0.25, "dev_worth": worth} for epoch, worth in enumerate(worths, start=1)]
    candidates = {row["epoch"]: candidate(tiny_model, warm_up.candidate(row["epoch"]), row["epoch"]) for row in history}
    assert len(set(candidates.values())) == 3
    metrics = warm_up.finish("epoch", history, [{"loss": 0.9}, {"loss": 0.3}])
    published = find_policy(str(out))
    assert weights_sha256(published.of("choose")) == candidates[best]
    assert metrics == {
        "samples": 0, "too_long": 4, "roles": {}, "best_epoch": best, "dev_reward": 0.25, "dev_worth": 1.0, "dev_questions": 2, "loss": 0.3,
        "policy": published.version,
    }  # fmt: skip
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert published.manifest["stage"] == "sft" and published.manifest["metrics"]["best_epoch"] == best
    assert len((out / "dev.csv").read_text().splitlines()) == 1 + 3


def candidate(model, folder, number) -> str:
    """The model with one number moved by so much, in that folder: the hash of its weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += number
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return weights_sha256(folder)

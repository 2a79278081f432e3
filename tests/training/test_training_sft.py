"""The warm-up on a tiny model: TRL itself, from samples to a policy that does what they show."""

import dataclasses
import json

import pytest
from toy import QUESTIONS, ToyRuntime, training_run

from dragoman.core.errors import UserError
from dragoman.engines.fetch import weights_sha256
from dragoman.registry.policy import find_policy
from dragoman.training import sft
from dragoman.training.settings import AdapterParams, SftParams

SETTINGS = SftParams(
    adapter=AdapterParams(rank=8, alpha=16), lr=0.01, batch_size=4, micro_batch=2, epochs=2, dev_questions=2
)


@pytest.fixture
def right(toy_samples):
    return [s for s in toy_samples if s.kind == "Right"]


async def train(tiny_model, samples, out, settings=SETTINGS):
    runtime = ToyRuntime()
    try:
        return await sft.train(training_run(tiny_model, runtime, out, QUESTIONS[:2]), samples, settings)
    finally:
        await runtime.close()


@pytest.mark.parametrize("adapter", [SETTINGS.adapter, None], ids=["lora", "full"])
async def test_the_policy_does_what_the_samples_show(tiny_model, right, tmp_path, adapter):
    settings = SETTINGS.model_copy(update={"adapter": adapter, "epochs": 6, "lr": 0.01 if adapter else 0.003})
    metrics = await train(tiny_model, right, tmp_path / "sft", settings)
    assert metrics["dev_reward"] == 1.0 and metrics["samples"] == 6
    losses = [float(line.split(",")[2]) for line in (tmp_path / "sft" / "loss.csv").read_text().splitlines()[1:]]
    assert losses[-1] < losses[0] / 2
    pointer = json.loads((tmp_path / "sft" / "policy.json").read_text())
    manifest = json.loads((tmp_path / "sft" / pointer["folder"] / "manifest.json").read_text())
    assert manifest["stage"] == "sft" and manifest["data"] == {"samples": "abc"}
    assert {p.name for p in (tmp_path / "sft").iterdir()} == {
        "dev", "dev.csv", "loss.csv", "metrics.json", "policies", "policy.json", "started.json",
    }  # fmt: skip


async def test_one_role_is_trained_and_the_others_keep_the_base(tiny_model, right, tmp_path):
    others = [dataclasses.replace(sample, role="another") for sample in right]
    settings = SETTINGS.model_copy(update={"roles": ("choose",)})
    metrics = await train(tiny_model, [*right, *others], tmp_path / "sft", settings)
    assert (metrics["samples"], metrics["roles"], metrics["too_long"]) == (6, {"choose": 6}, 0)
    published = find_policy(str(tmp_path / "sft"))
    assert set(published.weights) == {"*", "choose"}
    assert (
        weights_sha256(published.of("another")) == weights_sha256(tiny_model) != weights_sha256(published.of("choose"))
    )
    with pytest.raises(UserError, match="0 samples"):
        await train(tiny_model, right, tmp_path / "none", SETTINGS.model_copy(update={"roles": ("nobody",)}))


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 6), (2, 3), (6, 1)])
async def test_a_step_has_as_many_samples_as_was_said_also_where_more_fit_into_the_memory(
    tiny_model, right, tmp_path, batch_size, steps
):
    settings = SETTINGS.model_copy(update={"batch_size": batch_size, "micro_batch": 4, "epochs": 1})
    await train(tiny_model, right, tmp_path / "sft", settings)
    assert len((tmp_path / "sft" / "loss.csv").read_text().splitlines()) - 1 == steps


async def test_only_the_tokens_of_actions_are_learnt(tiny_model, right, tmp_path):
    """Another loss would come out if prompts counted: the reported one is that of the completions alone."""
    import torch
    from transformers import AutoModelForCausalLM

    settings = SETTINGS.model_copy(update={"lr": 1e-9, "batch_size": 6, "micro_batch": 6, "epochs": 1})
    await train(tiny_model, right, tmp_path / "sft", settings)
    reported = float((tmp_path / "sft" / "loss.csv").read_text().splitlines()[1].split(",")[2])
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    losses = []
    for s in right:
        ids = torch.tensor([[*s.prompt_ids, *s.completion_ids]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        own = logprobs[len(s.prompt_ids) - 1 :].gather(1, torch.tensor(s.completion_ids)[:, None])
        losses += (-own[:, 0]).tolist()
    assert reported == pytest.approx(sum(losses) / len(losses), rel=0.01)  # bfloat16


async def test_killed_after_an_epoch_it_comes_to_the_same_policy(tiny_model, right, tmp_path, monkeypatch):
    from transformers import Trainer

    unbroken = await train(tiny_model, right, tmp_path / "unbroken")
    original = Trainer._save_checkpoint

    class Killed(Exception):
        pass

    def dying(self, *arguments, **named):
        original(self, *arguments, **named)
        raise Killed

    monkeypatch.setattr(Trainer, "_save_checkpoint", dying)
    with pytest.raises(Killed):
        await train(tiny_model, right, tmp_path / "broken")
    monkeypatch.setattr(Trainer, "_save_checkpoint", original)
    torn = next((tmp_path / "broken").rglob("checkpoint-*")).parent / "checkpoint-99"
    torn.mkdir()  # as a kill leaves it that comes while a later one is written: without its last file
    (torn / "model.safetensors").write_bytes(b"half")
    assert await train(tiny_model, right, tmp_path / "broken") == unbroken
    left = [tmp_path / "broken" / name for name in ("epochs", "candidates")]
    for folder in left:  # as a kill leaves it that comes after the metrics were written
        folder.mkdir()
    assert await train(tiny_model, right, tmp_path / "broken") == unbroken
    assert not any(folder.exists() for folder in left)


async def test_nothing_to_learn_from_is_said(tiny_model, right, tmp_path):
    with pytest.raises(UserError, match="0 have at most 10 tokens"):
        await train(tiny_model, right, tmp_path / "sft", SETTINGS.model_copy(update={"max_tokens": 10}))
    with pytest.raises(UserError, match="0 samples"):
        await train(tiny_model, [], tmp_path / "sft")


async def test_other_samples_start_anew(tiny_model, right, tmp_path):
    await train(tiny_model, right, tmp_path / "sft")
    renamed = [dataclasses.replace(s, node=s.node[::-1]) for s in right]
    (tmp_path / "sft" / "stray").touch()
    await train(tiny_model, renamed, tmp_path / "sft")
    assert not (tmp_path / "sft" / "stray").exists()

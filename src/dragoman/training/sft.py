"""The warm-up: supervised fine-tuning on seed trajectories, loss on the action tokens alone (C-3PO table 6).

The loop is TRL's SFTTrainer with PEFT. It runs once over all epochs with a checkpoint after each, and then every epoch's
policy answers the dev questions: the best one is kept, which need not be the last.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core.progress import bar
from dragoman.engines.precision import resolved
from dragoman.rollout.samples import Sample
from dragoman.training.actor import lora_config
from dragoman.training.export import export
from dragoman.training.parallel import in_each
from dragoman.training.rollouts import Rollouts
from dragoman.training.run import TrainingRun
from dragoman.training.settings import SftParams
from dragoman.training.warm_up import begin, dev_row, dev_worths

log = logging.getLogger(__name__)


async def train(run: TrainingRun, batch: Sequence[Sample], settings: SftParams) -> dict[str, Any]:
    """Imitate the samples of `batch`, and publish the best epoch's policy.

    A run that was cut short goes on after its last finished epoch.

    Returns:
        What `metrics.json` of its folder holds.

    Raises:
        UserError: nothing to learn from.
    """
    out, runtime = run.out, run.runtime
    warm_up = await begin(__name__, run, batch, settings)
    if warm_up.finished:
        _clean(out)
        return warm_up.finished
    base = warm_up.policy.base
    losses = in_each(settings.processes, _fine_tune, base, warm_up.samples, settings, run.seed, out / "epochs")
    rollouts = Rollouts(run.system, runtime, run.reward, run.seed, settings.concurrency, settings.shaping)
    history: list[dict[str, Any]] = []
    worths: list[list[float | None]] = []
    for epoch, checkpoint in enumerate(_checkpoints(out / "epochs"), start=1):
        folder = warm_up.candidate(epoch)
        if not folder.is_dir():
            export(base, checkpoint, folder)
        policy = warm_up.policy.whole(folder)
        answered = await rollouts.run(policy, run.dev, out=out / "dev" / f"{epoch:02d}")
        row = dev_row(answered, rollouts)
        await runtime.release(run.system, policy)
        history.append({"epoch": epoch, **row})
        worths.append(dev_worths(answered, rollouts))
        log.info("sft epoch %d: dev %s %.3f", epoch, run.reward, row["dev_reward"])
    metrics = warm_up.finish("epoch", history, worths, losses)
    _clean(out)
    return metrics


def _clean(out: Path) -> None:
    """Remove what only a run that goes on would need."""
    for name in ("epochs", "candidates"):
        shutil.rmtree(out / name, ignore_errors=True)


def _fine_tune(base: Path, batch: Sequence[Sample], settings: SftParams, seed: int, work: Path) -> list[dict[str, Any]]:
    """Run TRL, from the last checkpoint in `work` where there is one. Returns the loss by step.

    In each of several processes at once: TRL divides the micro-batches of a step.
    """
    import torch
    from datasets import Dataset
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class ActionTrainer(SFTTrainer):
        """TRL without Triton puts the language head over whole prompts, which took two thirds of the time on a CPU.

        The loss is the same; here the head reads only positions that an action's token follows in some row.
        """

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs["labels"][:, 1:]
            read = (labels != -100).any(0).nonzero()[:, 0]
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], logits_to_keep=read)
            wanted = labels[:, read]
            total = cross_entropy(outputs.logits.float().flatten(0, 1), wanted.flatten(), reduction="sum")
            loss = total / ((wanted != -100).sum() if num_items_in_batch is None else num_items_in_batch)
            if num_items_in_batch is not None:  # in all processes, over which the mean of the gradients is taken
                loss = loss * self.accelerator.num_processes
            return (loss, outputs) if return_outputs else loss

    class Shown(TrainerCallback):
        """Progress as everywhere here: a bar on a terminal, and silence elsewhere."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            advance(steps=state.global_step)  # of a run that goes on

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                advance(f"loss {logs['loss']:.3f}")

    rows = Dataset.from_list(
        [
            {
                "input_ids": [*s.prompt_ids, *s.completion_ids],
                "completion_mask": [0] * len(s.prompt_ids) + [1] * len(s.completion_ids),
            }
            for s in batch
        ]
    )
    micro_batch = min(settings.micro_batch, max(1, settings.batch_size // settings.processes))
    together = micro_batch * settings.processes
    accumulate = max(1, round(min(settings.batch_size, len(batch)) / together))
    steps = settings.epochs * -(-len(batch) // (together * accumulate))
    adapter = settings.adapter
    bf16 = resolved(settings.dtype) == "bfloat16"
    dtype = torch.bfloat16 if adapter is not None and bf16 else torch.float32  # what is trained is float32
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    args = SFTConfig(
        output_dir=str(work),
        completion_only_loss=True,
        max_length=None,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulate,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine_with_min_lr" if settings.final_lr else "cosine",
        lr_scheduler_kwargs={"min_lr_rate": settings.final_lr} if settings.final_lr else {},
        warmup_steps=round(settings.warmup_ratio * steps),
        bf16=bf16,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        # Rows of equal length need no padding, but then a step is of one role; one row a pass needs none either way.
        train_sampling_strategy="random" if micro_batch == 1 else "group_by_length",
        save_strategy="epoch",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        seed=seed,
        data_seed=seed,
    )
    args._n_gpu = min(1, args.n_gpu)  # of several the trainer would divide a batch, and what the head reads, over all
    trainer = ActionTrainer(
        model=model,
        args=args,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=None if adapter is None else lora_config(adapter, model),
    )
    trainer.remove_callback(PrinterCallback)  # it prints a line for each step
    trainer.add_callback(Shown())
    with bar("imitate", steps) as advance:
        trainer.train(resume_from_checkpoint=bool(_checkpoints(work)) or None)
    return [
        {"step": row["step"], "epoch": round(row["epoch"], 3), "loss": row["loss"]}
        for row in trainer.state.log_history
        if "loss" in row
    ]


def _checkpoints(work: Path) -> list[Path]:
    """Those that are whole. A run that is killed while it writes one leaves the others' folder without its last file."""
    whole = []
    for path in sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2])):
        if (path / "trainer_state.json").is_file():
            whole.append(path)
        else:
            shutil.rmtree(path, ignore_errors=True)  # the trainer would take it for the latest
    return whole

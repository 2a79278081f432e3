"""The portable engine: Hugging Face transformers in process, with batches made of whatever requests are waiting."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.core.errors import UserError
from dragoman.engines.base import Completion, Result
from dragoman.engines.fetch import FETCH, loading, whole_model
from dragoman.engines.local import Job, LocalEngine
from dragoman.engines.marks import yes_and_no
from dragoman.engines.sampling import NO_NUMBERS, Average, Row, Sampler
from dragoman.engines.turns import TURNS

logger = logging.getLogger(__name__)

_SCORED_AT_ONCE = 1024
"""Tokens of a pass over prompts on a CPU: there larger passes take longer for each token, and others wait for them."""
_LINGER_S = 0.005  # far below one step of any model, long enough for the tasks of one event loop to arrive


class TransformersEngine(LocalEngine):
    """Runs a Hugging Face folder in process, on the GPU where torch sees one.

    Whatever waits is merged into batches of similar length. A batch runs to its longest completion.

    Args:
        model_path: the folder.
        dtype: "bfloat16", "float16" or "float32". With float32 a result does not depend on what else is in the batch;
            with the others it may, by their rounding.
        max_model_len: tokens of prompt and completion together; None for the model's own context.
        max_batch: completions per batch.
        max_batch_tokens: bound on rows times (longest prompt + longest completion), which bounds the KV cache. A
            single longer completion still runs, alone.
        threads: CPU threads; None for torch's choice.

    Raises:
        UserError: the folder or a setting is not usable.
    """

    can_score = True
    can_average = True

    def __init__(
        self,
        model_path: Path | str,
        *,
        dtype: str = "bfloat16",
        max_model_len: int | None = None,
        max_batch: int = 32,
        max_batch_tokens: int = 32_768,
        threads: int | None = None,
    ) -> None:
        if dtype not in ("bfloat16", "float16", "float32"):
            raise UserError(f"dtype is {dtype!r}; give bfloat16, float16 or float32")
        super().__init__(model_path, dtype=dtype, max_model_len=max_model_len)
        self._dtype = dtype
        self._max_batch = max_batch
        self._max_batch_tokens = max_batch_tokens
        self._threads = threads
        self._model: Any = None
        self._start()

    async def forget(self) -> None:
        """Nothing is kept between requests."""

    def _load(self) -> None:
        import torch
        from transformers import GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        disable_progress_bar()
        # the one place where weights that are kept in float32 are rounded
        with loading(str(self._folder), "its weights cannot be loaded", FETCH):
            model: Any = whole_model(self._folder, str(self._folder), dtype=getattr(torch, self._dtype))
            model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        # The folder's own may ask for a repetition penalty and the like, which would bend the distribution.
        model.generation_config = GenerationConfig(
            do_sample=False, eos_token_id=sorted(self._vocabulary.eos_ids), pad_token_id=self._vocabulary.pad_id
        )
        self._model = model

    def _unload(self) -> None:
        self._model = None

    def _serve(self) -> None:
        waiting: list[Row] = []
        done: dict[Job, dict[int, Completion]] = {}
        while True:
            jobs = self._take(wait=not waiting, linger_s=_LINGER_S)
            if self._closing.is_set():
                return
            self._score_all([job for job in jobs if job.marks])
            waiting = self._wanted(waiting)
            written = [job for job in jobs if not job.marks]
            waiting.extend(Row(job, i, self._vocabulary) for job in written for i in range(job.drawn))
            if not waiting:
                continue
            batch = self._next_batch(waiting)
            completed = self._complete(batch)
            if self._closing.is_set():  # they may have been cut short
                return
            for row in completed:
                completions = done.setdefault(row.job, {})
                completions[row.index] = row.completion
                if len(completions) == row.job.drawn and not row.job.future.done():
                    self._finish(row.job, done.pop(row.job))
            waiting = self._wanted([row for row in waiting if row not in batch])
            done = {job: completions for job, completions in done.items() if not job.future.done()}

    @staticmethod
    def _wanted(rows: Sequence[Row]) -> list[Row]:
        """The rows without those whose callers have gone, or whose jobs have failed with another row."""
        for row in rows:
            if row.job.given_up:
                row.job.drop()
        return [row for row in rows if not row.job.future.done()]

    def _score_all(self, jobs: Sequence[Job]) -> None:
        """Score the options of every job, in batches of similar length."""
        import torch

        most = self._max_batch_tokens if torch.cuda.is_available() else min(self._max_batch_tokens, _SCORED_AT_ONCE)
        batch: list[Job] = []
        for job in sorted(jobs, key=lambda job: -len(job.prompt_ids)):
            if job.given_up:
                job.drop()
                continue
            if batch and (len(batch) + 1) * len(batch[0].prompt_ids) > most:
                self._score(batch)
                batch = []
            batch.append(job)
        if batch:
            self._score(batch)

    def _score(self, jobs: Sequence[Job]) -> None:
        """One pass over the prompts, and the head's rows for yes and no alone, at the marks."""
        import torch

        device, head = self._model.device, self._model.get_output_embeddings().weight
        width = max(len(job.prompt_ids) for job in jobs)
        input_ids = torch.full((len(jobs), width), self._vocabulary.pad_id)
        for i, job in enumerate(jobs):  # padded on the right, which nothing before it can see: no mask is needed
            input_ids[i, : len(job.prompt_ids)] = torch.tensor(job.prompt_ids)
        yes, no = yes_and_no(self._vocabulary.tokenize)
        try:
            with TURNS, torch.inference_mode():
                states = self._model.model(input_ids=input_ids.to(device), use_cache=False).last_hidden_state
                direction = head[yes].float() - head[no].float()
                logits = [(states[i, list(job.marks)].float() @ direction).tolist() for i, job in enumerate(jobs)]
        except Exception as e:
            for job in jobs:
                job.fail(f"the model of {self._folder} failed: {e!r}", e)
            return
        for job, scored in zip(jobs, logits, strict=True):
            if not all(map(math.isfinite, scored)):  # it would choose the first option, and no passage, for ever
                job.fail(f"the model of {self._folder} gives {NO_NUMBERS}")
                continue
            read = len(job.prompt_ids)
            job.finish(
                Result(job.prompt_ids, (), read, 0, model=self._folder.name, logits=tuple(scored), marks=job.marks)
            )

    def _finish(self, job: Job, completions: dict[int, Completion]) -> None:
        ordered = tuple(completions[i] for i in range(job.drawn))
        job.finish(
            Result(
                prompt_ids=job.prompt_ids,
                completions=ordered,
                prompt_tokens=sum(map(len, (job.prompt_ids, *job.beside))),
                completion_tokens=sum(len(c.token_ids) for c in ordered),
                model=self._folder.name,
            )
        )

    def _next_batch(self, waiting: Sequence[Row]) -> list[Row]:
        """The row that has waited longest, and those nearest to it in length as long as the batch has room.

        Rows of several prompts have batches of their own: an average over one prompt would round a row's probabilities
        otherwise than `Sampler` does.
        """
        first = waiting[0]
        alike = [row for row in waiting if row.averages == first.averages]
        batch: list[Row] = []
        prompts = longest = new = 0
        for row in sorted(alike, key=lambda row: (row is not first, abs(row.length - first.length))):
            prompts += len(row.prompts)
            longest = max(longest, *map(len, row.prompts))
            new = max(new, row.job.request.max_tokens)
            if batch and (prompts > self._max_batch or prompts * (longest + new) > self._max_batch_tokens):
                break
            batch.append(row)
        return batch

    def _complete(self, batch: Sequence[Row]) -> list[Row]:
        """The rows, completed. If that fails, each is tried once alone, and those that fail again fail their jobs."""
        try:
            self._decode(batch)
            return list(batch)
        except Exception as e:
            logger.warning("a batch of %d failed (%r); trying its rows one by one", len(batch), e)
        good = []
        for row in (row.again() for row in batch):
            try:
                self._decode([row])
                good.append(row)
            except Exception as e:
                if not row.job.future.done():
                    row.job.fail(f"the model of {self._folder} failed: {e!r}", e)
        return good

    def _decode(self, rows: Sequence[Row]) -> None:
        """Go on with the prompts of each row until it has ended."""
        import torch
        from transformers import LogitsProcessorList, StoppingCriteriaList

        draw = (Average if rows[0].averages else Sampler)(rows, self._vocabulary.size)
        prompts = [(row, prompt) for row in rows for prompt in row.prompts]
        width = max(len(prompt) for _, prompt in prompts)
        input_ids = torch.full((len(prompts), width), self._vocabulary.pad_id)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for i, (_, prompt) in enumerate(prompts):  # padded on the left, so that all grow at the same end
            input_ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        device = self._model.device

        def finished(input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            closing = self._closing.is_set()
            ended = [closing or row.finish_reason is not None or row.job.given_up for row, _ in prompts]
            return torch.tensor(ended, device=device)

        with TURNS, torch.inference_mode():
            self._model.generate(
                input_ids=input_ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(row.job.request.max_tokens for row in rows),
                logits_processor=LogitsProcessorList([draw]),
                stopping_criteria=StoppingCriteriaList([finished]),
            )

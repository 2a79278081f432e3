"""How the transformers engine draws the tokens of a batch: each row by its own seed, temperature and grammar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dragoman.engines.base import Completion, FinishReason
from dragoman.engines.local import Job, Vocabulary, seed_of

if TYPE_CHECKING:
    import torch

NO_NUMBERS = "logits that are no numbers: its weights are broken, or dtype float16 is too narrow for them"
"""What a model gives that none can be drawn from."""


class Row:
    """One completion in the making: its own randomness, grammar and end, whoever shares the batch with it."""

    def __init__(self, job: Job, index: int, vocabulary: Vocabulary) -> None:
        request = job.request
        self.job = job
        self.index = index
        self.temperature = request.temperature
        self.rng = np.random.default_rng(seed_of(request, index))
        self.matcher = job.matcher()
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[tuple[tuple[str, float], ...]] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._vocabulary = vocabulary

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """One, or those whose probabilities are averaged."""
        return (self.job.prompt_ids, *self.job.beside)

    @property
    def averages(self) -> bool:
        return bool(self.job.beside)

    @property
    def length(self) -> int:
        return len(self.job.prompt_ids) + self.job.request.max_tokens

    @property
    def completion(self) -> Completion:
        reason = self.finish_reason or "length"
        return Completion(self.text, tuple(self.token_ids), tuple(self.logprobs), reason, tuple(self.alternatives))

    def again(self) -> Row:
        return Row(self.job, self.index, self._vocabulary)

    def add(self, token_id: int, logprob: float, likeliest: Sequence[tuple[int, float]]) -> None:
        if math.isnan(logprob):
            raise RuntimeError(NO_NUMBERS)
        request = self.job.request
        if request.alternatives:
            self.alternatives.append(self._vocabulary.reported(likeliest[: request.alternatives]))
        self.token_ids.append(token_id)
        self.logprobs.append(min(logprob, 0.0))  # rounding may lift a certain token a hair above 0
        if self.matcher is not None and not self.matcher.accept_token(token_id):
            raise RuntimeError(f"the grammar refused token {token_id}, which its mask had allowed")
        if token_id in self._vocabulary.eos_ids:
            self.finish_reason = "stop"
        elif request.stop and self._cut_at_stop():
            return
        elif len(self.token_ids) == request.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.text = self._decoded()

    def _decoded(self) -> str:
        return self._vocabulary.decode(self.token_ids, special=self.job.request.special)

    def _cut_at_stop(self) -> bool:
        text = self._decoded()
        at = min((i for i in map(text.find, self.job.request.stop) if i >= 0), default=None)
        if at is None:
            return False
        self.text, self.finish_reason = text[:at], "stop"
        return True


class Sampler:
    """A logits processor that draws the next token of every row itself; all but that token leave it at -inf.

    Grammar and temperature come first, then the inverse of the distribution function at one uniform number per row and
    step. So each row is sampled exactly, under its own temperature and seed, and its neighbours cannot be told from its
    tokens. Log-probabilities are those of that same distribution.
    """

    def __init__(self, rows: Sequence[Row], vocabulary_size: int) -> None:
        import xgrammar

        self._rows = rows
        self._xgrammar = xgrammar
        self._bitmask = xgrammar.allocate_token_bitmask(len(rows), vocabulary_size)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Both [rows, vocabulary], float32."""
        import torch

        active = [i for i, row in enumerate(self._rows) if row.finish_reason is None]
        temperature = scores.new_tensor([[row.temperature or 1.0] for row in self._rows])
        logprobs = (self._masked(scores, active) / temperature).log_softmax(-1)
        chosen = logprobs.argmax(-1)
        if drawn := [i for i in active if self._rows[i].temperature > 0]:
            cumulative = logprobs[drawn].double().exp().cumsum(-1)
            uniform = cumulative.new_tensor([[self._rows[i].rng.random()] for i in drawn])
            found = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
            chosen[drawn] = found.squeeze(-1).clamp_(max=logprobs.shape[-1] - 1)  # beyond it where they are no numbers
        of_the_chosen = logprobs.gather(-1, chosen[:, None]).squeeze(-1)
        likeliest = self._likeliest(logprobs)
        for row, *drew in zip(self._rows, chosen.tolist(), of_the_chosen.tolist(), likeliest, strict=True):
            if row.finish_reason is None:
                row.add(*drew)
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)

    def _likeliest(self, logprobs: torch.Tensor) -> list[list[tuple[int, float]]]:
        """For each row as many tokens as any of them reports, the likeliest first."""
        most = max(row.job.request.alternatives for row in self._rows)
        values, ids = logprobs.topk(most)
        return [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]

    def _masked(self, scores: torch.Tensor, active: Sequence[int]) -> torch.Tensor:
        bound = []
        for i in active:
            matcher = self._rows[i].matcher
            if matcher is not None:
                matcher.fill_next_token_bitmask(self._bitmask, i)
                bound.append(i)
        if not bound:
            return scores
        allowed = scores.clone()
        self._xgrammar.apply_token_bitmask_inplace(allowed, self._bitmask.to(scores.device), indices=bound)
        return allowed


class Average:
    """A logits processor for a batch in which each completion has several prompts, one after the other.

    All prompts of a completion get the same token. It is drawn from the weighted average of their probabilities, which is
    not that of their logits. Temperature and grammar are those of the request, as in `Sampler`.
    """

    def __init__(self, rows: Sequence[Row], vocabulary_size: int) -> None:
        self._sampler = Sampler(rows, vocabulary_size)
        self._prompts = [len(row.prompts) for row in rows]
        self._weights = [weight for row in rows for weight in row.job.request.weights]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Both [prompts of all rows, vocabulary], float32."""
        import torch

        weighted = scores.log_softmax(-1) + scores.new_tensor(self._weights)[:, None].log()
        averaged = torch.stack([of_a_row.logsumexp(0) for of_a_row in weighted.split(self._prompts)])
        drawn = self._sampler(input_ids, averaged)
        return drawn.repeat_interleave(torch.tensor(self._prompts, device=drawn.device), dim=0)

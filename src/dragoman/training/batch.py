"""Samples as tensors: rows in which siblings share their prompt, and the tokens that a grammar allowed.

The prompts of agents are long and their actions short (a filter reads 600 tokens to write 8), and a tree draws several
actions in one state. So a row holds a prompt once and the actions after it, each of which sees the prompt and itself
alone: half the work or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman.engines.local import Vocabulary
from dragoman.rollout.samples import Sample


@dataclass(frozen=True)
class Row:
    """Indices (into a list of samples) of actions that were taken after the same prompt."""

    prompt_ids: tuple[int, ...]
    actions: tuple[int, ...]
    tokens: int
    marked: bool = False
    """The actions were chosen at marks in the prompt, and have no tokens of their own."""


@dataclass(frozen=True)
class Batch:
    """Rows as tensors. b rows of length l, with a actions of at most m tokens in all.

    The token before an action's first is its prompt's last, so an action of n tokens is read at n positions: `position`
    says where the model's output for token m of action a stands.
    """

    actions: Tensor
    """[a] index of the sample."""
    input_ids: Tensor
    """[b, l]"""
    position_ids: Tensor
    """[b, l]"""
    attention: Tensor
    """[b, 1, l, l] bool: query may see key."""
    row: Tensor
    """[a, 1] row of the action."""
    position: Tensor
    """[a, m]"""
    targets: Tensor
    """[a, m] the action's token ids."""
    mask: Tensor
    """[a, m] bool: there is such a token."""
    allowed: Tensor | None
    """[a, m, vocabulary / 32] int32 bit mask of the tokens that the grammar allowed; None when no action had one."""

    @property
    def free(self) -> Tensor:
        """[a, m] bool: there is such a token, and the grammar allowed others beside it."""
        return self.mask if self.allowed is None else self.mask & several(self.allowed)


@dataclass(frozen=True)
class MarkedBatch:
    """Rows whose actions were chosen at marks. b rows of length l, with a actions out of at most o options each.

    A choice is one decision, a selection one for each option: m is 1 or o.
    """

    actions: Tensor
    """[a] index of the sample."""
    input_ids: Tensor
    """[b, l] padded on the right, where no mark can see it."""
    row: Tensor
    """[a, 1] row of the action."""
    position: Tensor
    """[a, o] where each option is read."""
    options: Tensor
    """[a, o] bool: there is such an option."""
    bias: Tensor
    """[a, o] what the system adds to its logit."""
    many: Tensor
    """[a] bool: a selection."""
    taken: Tensor
    """[a, o] bool: the option is part of the action."""
    mask: Tensor
    """[a, m] bool: there is such a decision."""

    @property
    def free(self) -> Tensor:
        """[a, m] bool: no grammar forces a decision at marks."""
        return self.mask


def rows(samples: Sequence[Sample], indices: Sequence[int]) -> list[Row]:
    """Group samples by prompt, in the order in which the prompts first come."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for i in indices:
        by_prompt.setdefault(samples[i].prompt_ids, []).append(i)
    return [
        Row(prompt, tuple(actions), len(prompt), marked=True)
        if samples[actions[0]].marks
        else Row(prompt, tuple(actions), len(prompt) + sum(len(samples[i].completion_ids) - 1 for i in actions))
        for prompt, actions in by_prompt.items()
    ]


def micro_batches(rows: Sequence[Row], max_tokens: int) -> Iterator[list[Row]]:
    """Rows of one way to decide and like length together, each batch of at most `max_tokens` tokens with padding.

    A longer row is a batch of its own.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=lambda r: (r.marked, -r.tokens)):
        full = batch and batch[0].tokens * (len(batch) + 1) > max_tokens
        if full or (batch and batch[0].marked != row.marked):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def collate(
    batch: Sequence[Row], samples: Sequence[Sample], allowed: Callable[[Sample], Tensor | None], pad_id: int
) -> Batch:
    """Lay the rows out as tensors. `allowed` gives a sample's bit masks, [its tokens, vocabulary / 32]."""
    length = max(row.tokens for row in batch)
    numbers = [i for row in batch for i in row.actions]
    longest = max(len(samples[i].completion_ids) for i in numbers)
    input_ids = torch.full((len(batch), length), pad_id)
    position_ids = torch.zeros(len(batch), length, dtype=torch.long)
    attention = torch.eye(length, dtype=torch.bool).repeat(len(batch), 1, 1, 1)  # padding sees itself: no empty rows
    of_row = torch.tensor([b for b, row in enumerate(batch) for _ in row.actions])[:, None]
    position = torch.zeros(len(numbers), longest, dtype=torch.long)
    targets = torch.zeros(len(numbers), longest, dtype=torch.long)
    mask = torch.zeros(len(numbers), longest, dtype=torch.bool)
    masks = [allowed(samples[i]) for i in numbers]
    width = next((m.shape[1] for m in masks if m is not None), None)
    bits = None if width is None else torch.full((len(numbers), longest, width), -1, dtype=torch.int32)
    a = 0
    for b, row in enumerate(batch):
        prompt = len(row.prompt_ids)
        input_ids[b, :prompt] = torch.tensor(row.prompt_ids)
        position_ids[b, :prompt] = torch.arange(prompt)
        attention[b, 0, :prompt, :prompt] = torch.ones(prompt, prompt, dtype=torch.bool).tril()
        start = prompt
        for i in row.actions:
            ids = torch.tensor(samples[i].completion_ids)
            n = len(ids)
            end = start + n - 1  # the last token of an action predicts nothing
            input_ids[b, start:end] = ids[:-1]
            position_ids[b, start:end] = torch.arange(prompt, prompt + n - 1)
            attention[b, 0, start:end, :prompt] = True
            attention[b, 0, start:end, start:end] = torch.ones(n - 1, n - 1, dtype=torch.bool).tril()
            position[a, 0] = prompt - 1
            position[a, 1:n] = torch.arange(start, end)
            targets[a, :n] = ids
            mask[a, :n] = True
            if bits is not None and (own := masks[a]) is not None:
                bits[a, :n] = own
            start, a = end, a + 1
    return Batch(torch.tensor(numbers), input_ids, position_ids, attention, of_row, position, targets, mask, bits)


def collate_marked(batch: Sequence[Row], samples: Sequence[Sample], pad_id: int) -> MarkedBatch:
    """Lay rows out as tensors whose actions were chosen at marks."""
    numbers = [i for row in batch for i in row.actions]
    marks = [m for i in numbers if (m := samples[i].marks)]
    most = max(len(m.positions) for m in marks)
    input_ids = torch.full((len(batch), max(row.tokens for row in batch)), pad_id)
    position = torch.zeros(len(marks), most, dtype=torch.long)
    options, taken = (torch.zeros(len(marks), most, dtype=torch.bool) for _ in range(2))
    bias = torch.zeros(len(marks), most)
    mask = torch.zeros(len(marks), max(samples[i].length for i in numbers), dtype=torch.bool)
    for b, row in enumerate(batch):
        input_ids[b, : len(row.prompt_ids)] = torch.tensor(row.prompt_ids)
    for a, m in enumerate(marks):
        position[a, : len(m.positions)] = torch.tensor(m.positions)
        options[a, : len(m.positions)] = True
        bias[a, : len(m.bias)] = torch.tensor(m.bias)
        taken[a, list(m.taken)] = True
        mask[a, : samples[numbers[a]].length] = True
    of_row = torch.tensor([b for b, row in enumerate(batch) for _ in row.actions])[:, None]
    many = torch.tensor([m.many for m in marks])
    return MarkedBatch(torch.tensor(numbers), input_ids, of_row, position, options, bias, many, taken, mask)


class AllowedTokens:
    """Computes which tokens a sample's grammar allowed at each step: anew each time, and keeps how many were free."""

    def __init__(self, folder: Path) -> None:
        self.vocabulary = Vocabulary(folder, None)
        self._free: dict[str, int] = {}
        self.pad_id = self.vocabulary.pad_id

    def __call__(self, sample: Sample) -> Tensor | None:
        """[tokens, vocabulary / 32] int32 bit mask; None for a sample without grammar.

        Raises:
            ValueError: the grammar does not allow the sample's own tokens: it was drawn under another one.
        """
        if sample.grammar is None:
            return None
        import xgrammar

        matcher = self.vocabulary.matcher(sample.grammar)
        masks = xgrammar.allocate_token_bitmask(len(sample.completion_ids), self.vocabulary.size)
        for m, token in enumerate(sample.completion_ids):
            matcher.fill_next_token_bitmask(masks, m)
            if not matcher.accept_token(token):
                raise ValueError(f"node {sample.node}: token {token} is not one that {sample.grammar} allows at {m}")
        self._free[_name(sample)] = int(several(masks).sum())
        return masks

    def free(self, sample: Sample) -> int:
        """How many of its choices the grammar did not make."""
        if sample.marks is not None or sample.grammar is None:
            return sample.length
        if _name(sample) not in self._free:
            self(sample)
        return self._free[_name(sample)]

    def forget(self) -> None:
        self._free.clear()


def _name(sample: Sample) -> str:
    return f"{sample.episode}/{sample.node}"


def lay_out(
    samples: Sequence[Sample],
    indices: Sequence[int],
    allowed: AllowedTokens,
    max_tokens: int,
    part: slice = slice(None),
) -> Iterator[Batch | MarkedBatch]:
    """Some of the samples as batches of at most `max_tokens` tokens each, or a part of these batches.

    One at a time: masks and grammars of a whole iteration would fill the memory.
    """
    for group in list(micro_batches(rows(samples, indices), max_tokens))[part]:
        if group[0].marked:
            yield collate_marked(group, samples, allowed.pad_id)
        else:
            yield collate(group, samples, allowed, allowed.pad_id)


def several(bits: Tensor) -> Tensor:
    """Of bit masks [..., words], as [...]: whether more than one bit is set."""
    return ((bits != 0).sum(-1) > 1) | ((bits & (bits - 1)) != 0).any(-1)


def unpack(bits: Tensor, size: int) -> Tensor:
    """Bit masks [..., words] as booleans [..., size]; bit i of word w is token 32 w + i."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return (bits[..., None] >> shifts & 1).bool().flatten(-2)[..., :size]

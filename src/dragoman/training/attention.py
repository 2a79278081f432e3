"""Attention for training on a CPU, where the backward pass of torch's fused kernel takes several times as long for short rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NAME = "short_rows"
"""How transformers calls it: `attn_implementation`."""
LONGEST = 640
"""Tokens of a row. Above, the fused kernel wins."""
MOST_PAIRS = 2**24
"""Pairs of tokens, in all rows and heads of a pass. Each layer that learns keeps a number for each, 32 MiB in all."""


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: causal attention by matrix products, or by torch's kernel where that is better.

    Args:
        query: [rows, heads, tokens, width]; key and value have as many heads or fewer, each for a group of the query's.
        attention_mask: None where each token sees all before it.

    Returns:
        [rows, tokens, heads, width], and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows, heads, tokens, width = query.shape
    causal = attention_mask is None and getattr(module, "is_causal", True) and options.get("position_bias") is None
    # With the gradient or without, so that two passes of a policy that is trained differ by its weights alone.
    learns = module.training and not options.get("dropout") and query.device.type == "cpu"
    few = tokens <= LONGEST and rows * heads * tokens**2 <= MOST_PAIRS
    if not (causal and learns and few and key.shape[2] == tokens and value.shape[3] == width):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return causal_attention(query, key, value, options.get("scaling")).transpose(1, 2).contiguous(), None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None) -> Tensor:
    """softmax(scaling Q K^T + mask) V, each token over itself and those before it.

    The heads of a group are read as one long row of queries, so keys and values are not copied for each of them.

    Args:
        query: [rows, heads, tokens, width].
        key: [rows, groups, tokens, width], and `value` alike.
        scaling: 1 / sqrt(width) by default.

    Returns:
        [rows, heads, tokens, width].
    """
    rows, heads, tokens, width = query.shape
    groups = key.shape[1]
    each = heads // groups
    q = query.reshape(rows * groups, each * tokens, width)
    k, v = (x.reshape(rows * groups, tokens, width) for x in (key, value))
    hidden = torch.full((tokens, tokens), -torch.inf, dtype=q.dtype, device=q.device).triu(1).repeat(each, 1)
    scores = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=width**-0.5 if scaling is None else scaling)
    return torch.bmm(scores.softmax(-1), v).view(rows, heads, tokens, width)


def registered() -> str:
    """The name of `attend`, by which transformers finds it and masks as for its own `sdpa`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME

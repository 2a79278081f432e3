"""What is maximized instead of the likelihood of good actions, by name (`rl.loss`): for PPO and GRPO alike.

Shapes: a actions, of at most m tokens each. Only free tokens count, which the grammar did not force: |o| is their number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dragoman.training.settings import RlParams


def surrogate(logprobs: Tensor, old: Tensor, advantages: Tensor, free: Tensor, settings: RlParams) -> Tensor:
    """The objective of each token, of which an algorithm takes the sum or mean.

    `clip` (PPO: Schulman et al. 2017, eq. 7): min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A), rho = pi / pi_old.

    `gspo` (Zheng et al. 2025, eq. 5 and 7; 13 for advantages by token): the same, where rho is one ratio for the whole action,
    s = (pi(o) / pi_old(o))^(1 / |o|). It stays near 1, so the paper's epsilon is below 0.001.

    `cispo` (MiniMax-M1, 2025, eq. 4 and 5): sg(min(rho, 1 + epsilon)) A log pi. Clipped tokens keep a gradient. As in the
    paper's experiments there is no bound from below.

    With `max_ratio`, an action that became so many times likelier, or less likely, as a whole is left out of all of them.

    Args:
        logprobs: [a, m] under the policy that is trained.
        old: [a, m] under the policy that drew the actions.
        advantages: [a, m], or [a, 1] where an action has one for all of its tokens.
        free: [a, m] bool.
        settings: `loss`, `clip`, which is epsilon, and `max_ratio`.

    Returns:
        [a, m], 0 where a token is not free.
    """
    ratio = ratios(logprobs, old, free, settings.loss)
    if settings.loss == "cispo":
        objective = ratio.detach().clamp(max=1 + settings.clip) * advantages * logprobs
    else:
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        objective = torch.min(ratio * advantages, clipped * advantages)
    if settings.max_ratio is not None:
        whole = ((logprobs - old) * free).detach().sum(1, keepdim=True)
        objective = objective * (whole.abs() <= math.log(settings.max_ratio))
    return objective * free


def ratios(logprobs: Tensor, old: Tensor, free: Tensor, loss: str) -> Tensor:
    """[a, m] rho of each token; with `gspo` that of its action, whose gradient is the token's own (GSPO-token, eq. 14)."""
    log_ratio = (logprobs - old) * free
    if loss != "gspo":
        return log_ratio.exp()
    mean = log_ratio.sum(1, keepdim=True) / free.sum(1, keepdim=True).clamp(min=1)
    return (mean.detach() + log_ratio - log_ratio.detach()).exp()


def beyond_clip(logprobs: Tensor, old: Tensor, free: Tensor, settings: RlParams) -> float:
    """How many tokens have a ratio outside of 1 - epsilon to 1 + epsilon."""
    ratio = ratios(logprobs.detach(), old, free, settings.loss)
    return float((((ratio - 1).abs() > settings.clip) & free).sum())

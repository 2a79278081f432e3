"""Maximum likelihood of the actions that were chosen, by which MyGO and self-training learn.

Shapes: a actions, of at most m tokens each. Everything is zero where an action has no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from dragoman.rollout.samples import Sample
from dragoman.training.algorithm import MicroBatch
from dragoman.training.settings import RlParams

if TYPE_CHECKING:
    from dragoman.training.learner import Learner

PROBED = 64
"""Actions by which an iteration's entropy and distance to the engine are measured: learning itself needs neither."""


def prepare(learner: Learner, batch: Sequence[Sample], *, drawn_by_another: bool) -> tuple[tuple[()], dict[str, float]]:
    """Nothing that learning needs: the likelihood is computed when it is differentiated.

    Args:
        drawn_by_another: the actions are those of another policy than the one that learns. What separates the two is then no
            fault of the engine, and no guard is to judge it.
    """
    probed = batch[:PROBED]
    figures = learner.survey(probed).figures(probed)
    if drawn_by_another:
        figures.pop("engine_difference", None)
    return (), figures


def loss(micro: MicroBatch, experience: tuple[()], settings: RlParams) -> tuple[Tensor, dict[str, float]]:
    """The negative log-likelihood (Mujica-MyGO, eq. 6)."""
    value = likelihood_loss(micro.logprobs, micro.free, tokens=micro.tokens)
    return value, {"nll": float(value.detach())}


def likelihood_loss(logprobs: Tensor, free: Tensor, *, tokens: int) -> Tensor:
    """The negative log-likelihood of the agents' own tokens (eq. 6), as a mean over `tokens`.

    Every token of every turn, of planner and workers alike, counts the same, so this is the expectation over trajectories
    but for a constant factor. Tokens that the grammar forced are not the agents' own: they have probability 1.

    Args:
        logprobs: [a, m] under the policy that is trained.
        free: [a, m] bool.
        tokens: how many of them the iteration has, of which these actions may be a part.

    Returns:
        A scalar.
    """
    return -(logprobs * free).sum() / tokens

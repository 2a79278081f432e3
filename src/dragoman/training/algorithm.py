"""What an algorithm is: three functions that the loop and the learner call, and what these need to be there.

The loop calls `collect` with an iteration's questions. The learner calls `prepare` with the actions that were chosen, and
then `loss` with micro-batches of them, adding up the gradients of each optimizer step. An iteration's loss is one sum over
its actions, whose parts these are. A step's gradient is multiplied by the number of steps in an epoch, so that it
estimates the gradient of the whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from dragoman.core.types import Question
from dragoman.rollout.record import Episode
from dragoman.rollout.samples import Sample
from dragoman.training.settings import RlParams

if TYPE_CHECKING:
    from dragoman.training.learner import Learner
    from dragoman.training.loop import Loop


@dataclass(frozen=True)
class Collected:
    """What an iteration has to learn from."""

    episodes: Sequence[Episode]
    batch: Sequence[Sample]
    """May be empty; then nothing is learnt in this iteration."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """For the history, where they replace the loop's own of the same name."""


class MicroBatch(NamedTuple):
    """Some actions of an iteration under the weights that are trained: a actions, of at most m tokens each."""

    logprobs: Tensor
    """[a, m] with a gradient; 0 where there is no token."""
    values: Tensor | None
    """[a, m] the critic's, with a gradient; None without one."""
    free: Tensor
    """[a, m] bool: there is such a token, and the grammar did not force it."""
    tokens: int
    """Free ones, in the whole iteration."""


Figures = dict[str, float]
"""For the history, by the names of its columns."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm by its functions. The tuples of tensors that `prepare` makes are constants of the iteration."""

    name: str
    collect: Callable[[Loop, Sequence[Question]], Awaitable[Collected]]
    """Which trajectories to draw, and which of their actions to learn from."""
    prepare: Callable[[Learner, Sequence[Sample]], tuple[Any, Figures]]
    """A tuple of tensors, [a] or [a, m], for the actions of a batch, and figures for the history."""
    loss: Callable[[MicroBatch, Any, RlParams], tuple[Tensor, Figures]]
    """A scalar for a micro-batch, given its part of those tensors, and figures. Both add up over an iteration."""
    shaped: bool = True
    """Whether it learns from the reward with `rl.shaping`."""
    needs_reference: Callable[[RlParams], bool] = lambda settings: False
    """Whether the warm-up's log-probabilities are asked for."""
    needs_critic: Callable[[RlParams], bool] = lambda settings: False
    check: Callable[[RlParams], None] = lambda settings: None
    """Raises a UserError for settings that the algorithm cannot work with."""
    hopeless: Callable[[Sequence[Mapping[str, Any]], RlParams], str] = lambda history, settings: ""
    """Why the rows of a history say that there is no use in going on; empty where they do not."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resolve_name, (f"{self.collect.__module__}:ALGORITHM",)  # another process finds it in its file

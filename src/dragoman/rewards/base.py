"""What a reward function is, and the decorator that makes one known by its name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dragoman.core.errors import UserError
from dragoman.systems.base import StopReason

Score = Callable[..., float | Awaitable[float | None] | None]
"""`score(question, trajectory, passages, *, parameters) -> float | None`, plain or async.

`passages` are those that the answer rests on, with their texts. None says that there is no score, which is not a zero. A
parameter called `llm` receives the engine of the frozen LLM, and one called `judge` that of the judge.
"""
ENGINES = frozenset({"llm", "judge"})
S = TypeVar("S", bound=Score)
Bounds = tuple[float, float]


class Trajectory(Protocol):
    """What a reward may look at. Nodes, steps and passages are ids; `answer` is None where the trajectory has none."""

    nodes: list[str]
    steps: list[str]
    answer: str | None
    passages: list[str]
    stop: StopReason


@dataclass(frozen=True)
class RewardFunction:
    """A reward by its name. `bounds` are the lowest and the highest value that it can give."""

    name: str
    score: Score
    bounds: Bounds = (-math.inf, math.inf)
    of_answers: bool = True
    """Whether it reads the answer. One that does not can also score decisions after which the LLM was not asked for any."""

    @property
    def parameters(self) -> frozenset[str]:
        """The names of its keyword parameters, those that receive an engine left out."""
        return frozenset(self._keywords()) - ENGINES

    @property
    def asks(self) -> frozenset[str]:
        """Those that receive one: `llm`, `judge`, both, or none."""
        return ENGINES.intersection(self._keywords())

    def _keywords(self) -> list[str]:
        parameters = inspect.signature(self.score).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


REWARDS: dict[str, RewardFunction] = {}
"""All that have been imported; `discovery` imports them."""


def reward(*, bounds: Bounds | None = None, name: str = "", of_answers: bool = True) -> Callable[[S], S]:
    """Make the function below a reward of its name.

    Args:
        bounds: the lowest and the highest value that it can give; None when there are none.
        name: of the reward, where it is not that of the function.
        of_answers: False where it looks at the passages alone.

    Raises:
        UserError: another function has that name.
    """

    def register(score: S) -> S:
        known_as, module = name or score.__name__, score.__module__
        if known_as in REWARDS and (other := REWARDS[known_as].score.__module__) != module:
            raise UserError(f"two rewards are called {known_as!r}, in {other} and in {module}: rename one")
        REWARDS[known_as] = RewardFunction(known_as, score, bounds or (-math.inf, math.inf), of_answers)
        return score

    return register

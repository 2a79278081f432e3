"""How a tree grows: how many actions are drawn at each decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from dragoman.core.settings import Section


@dataclass(frozen=True)
class Exploration:
    """How many actions are drawn at a point.

    The default is inference: one action, greedy. A tree rollout draws `breadth[t - 1]` actions at depth t (the last
    entry holds for all that follow), and down to depth `force` so many of every kind of action (1 in C-3PO, section 5.1);
    those without a choice of their own are all the same and one. With `oracle`, roles that have one act as it says, where
    the question's gold passages are known, and nothing is drawn for them.
    """

    temperature: float = 0.0
    breadth: tuple[int, ...] = (1,)
    force: int = 0
    max_nodes: int | None = None
    max_tokens: int | None = None
    """Limits on a whole tree. At each fork the siblings share equally in what is left, so that where a branch is cut does
    not depend on which of them happened to run first."""
    oracle: bool = False

    def draws(self, depth: int) -> int:
        return self.breadth[min(depth, len(self.breadth)) - 1]


TREE = Exploration(temperature=1.0, breadth=(2, 2, 2, 2, 1), force=1)
"""C-3PO eq. 2: K(t) = 2 for t <= 4, else 1, after a deterministic first decision."""


class ExplorationParams(Section):
    """How a tree grows in a rollout for training (C-3PO section 5.1)."""

    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling is pure, which a trainer relies on: no top-p, no top-k. vLLM takes no more than 2."""
    breadth: tuple[Annotated[int, Field(ge=1)], ...] = Field((2, 2, 2, 2, 1), min_length=1)
    """K(t): actions drawn at depth 1, 2, ...; the last number holds for all that follow (eq. 2)."""
    force: int = Field(1, ge=0)
    """Try every kind of action at so many first decisions; 1 is the paper's deterministic rollout."""
    max_nodes: int | None = Field(None, ge=1)
    """Most decisions in a tree (but at least one of each first kind). Branches that exceed their share are cut, unscored."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens in a tree, prompts included."""
    oracle: bool = False
    """Stage `seeds` alone: where a question's gold passages are known, act as one who knows them, instead of drawing."""

    @model_validator(mode="before")
    @classmethod
    def _sampling_is_pure(cls, values: Any) -> Any:
        for name in ("top_p", "top_k", "min_p"):
            if isinstance(values, dict) and name in values:
                raise ValueError(
                    f"{name}: training samples from the whole distribution, or its ratios would be of another one; "
                    "leave it out"
                )
        return values

    def build(self) -> Exploration:
        return Exploration(**self.model_dump())

    def single(self) -> ExplorationParams:
        """One trajectory of the policy's own choice: the ablation without a tree."""
        return self.model_copy(update={"breadth": (1,), "force": 0})

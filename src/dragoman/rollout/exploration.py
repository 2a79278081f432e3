"""How a tree grows: how many actions are drawn at each decision."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dragoman.core.settings import Section

Draws = Annotated[int, Field(ge=1)]


class Exploration(Section):
    """How many actions are drawn in a state. The defaults are those of C-3PO (section 5.1, eq. 2).

    Limits hold for a whole tree. At each fork the siblings share equally in what is left. So where a branch is cut does
    not depend on which of them happened to run first.
    """

    breadth: tuple[Draws, ...] = Field((2, 2, 2, 2, 1), min_length=1)
    """K(t): actions drawn at depth 1, 2, ...; the last number holds for all that follow."""
    forks: float = Field(1.0, gt=0, le=1)
    """The share of states in which `breadth` holds, by chance; in the others one action is drawn. So a tree that is small has
    siblings at any depth, now here and now there. What is forced, and `breadth_of`, it leaves alone."""
    breadth_of: dict[str, Draws] = Field({})
    """K of single roles, which wins at any depth: `{answer: 16}` compares 16 answers, whatever came before."""
    force: int = Field(1, ge=0)
    """Down to this depth, draw that many actions of every kind: the deterministic rollout of the paper is 1. At marks one of
    every kind is drawn, and then others up to that many in all."""
    temperature: float = Field(1.0, ge=0, le=2)
    """Training relies on pure sampling: no top-p, no top-k. 0 is greedy, for a breadth of 1. vLLM takes no more than 2."""
    max_nodes: int | None = Field(None, ge=1)
    """Most decisions in a tree, but at least one of each kind at the first. Branches beyond their share are cut, unscored."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens in a tree, prompts included."""
    oracle: bool = False
    """Stage `seeds` alone: take oracle actions where a question's gold passages are known, instead of drawing."""
    noise: float = Field(0.0, ge=0, lt=1)
    """With `oracle`, at marks: about so large a share of what it sees the oracle is wrong, so that others' errors are seen."""
    label: bool = False
    """At marks: record what an oracle would have done in each state that the policy comes to."""
    answers: bool = True
    """Ask the LLM for the answer at the end. Without it there are decisions and passages alone: no reward of answers, and RL learns
    from `rl.shaping`. It is asked in any case where no gold passages are known, and by stage `seeds` where roles write: then the
    reward alone tells what was right."""

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

    @field_validator("temperature")
    @classmethod
    def _greedy_draws_are_equal(cls, value: float, known: ValidationInfo) -> float:
        if (
            not value
            and max((*known.data.get("breadth", ()), *known.data.get("breadth_of", {}).values()), default=1) > 1
        ):
            raise ValueError("0 draws the same action every time; raise it, or set breadth to 1")
        return value

    @property
    def has_siblings(self) -> bool:
        """Whether any state has several actions, which can be compared."""
        return self.force > 0 or max((*self.breadth, *self.breadth_of.values())) > 1

    def draws(self, role: str, depth: int, chance: float = 0.0) -> int:
        """How many actions of a role are drawn in a state at a depth, counted from 1.

        Args:
            chance: a number of that state, from 0 to 1 with equal chances: where it is below `forks`, `breadth` holds.
        """
        if role in self.breadth_of:
            return self.breadth_of[role]
        return self.breadth[min(depth, len(self.breadth)) - 1] if chance < self.forks else 1

    def single(self) -> Exploration:
        """Single trajectories of the policy's own choice."""
        return self.model_copy(update={"breadth": (1,), "forks": 1.0, "breadth_of": {}, "force": 0})


TREE = Exploration()
GREEDY = Exploration(breadth=(1,), force=0, temperature=0)
"""Inference: one action, the likeliest."""

"""What synthetic questions are to be like: a plan out of a YAML file that its user owns.

A *categorization* (such as `question_phrasing`) has *categories* with probabilities. A question is planned by drawing one of
the *combinations* of categorizations, then a category of each (mRAG, section 2 and appendix A).
"""

from __future__ import annotations

import random
from collections.abc import Set
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import Section, parse_section, read_yaml

PLAN = "plan.yaml"
"""The plan of synthetic questions, beside them."""
BUILT_IN = Path(__file__).with_name(PLAN)
TOLERANCE = 1e-6


class Category(Section):
    probability: float = Field(ge=0, le=1)
    description: str = Field(min_length=1)
    """What a writer of questions is told."""


class Plan(Section):
    categorizations: dict[str, Annotated[dict[str, Category], Field(min_length=1)]]
    core: tuple[str, ...] = ()
    """Categorizations of every combination."""
    combinations: Annotated[tuple[tuple[str, ...], ...], Field(min_length=1)]
    """What each combination adds to the core; all are equally likely."""
    incompatible: tuple[tuple[str, str], ...] = ()
    """Pairs of categorizations that must not meet in a combination."""

    @model_validator(mode="after")
    def _adds_up(self) -> Plan:
        for name, categories in self.categorizations.items():
            total = sum(category.probability for category in categories.values())
            if abs(total - 1) > TOLERANCE:
                raise ValueError(f"categorizations.{name}: the probabilities add up to {total:g}, not to 1")
        self._known("core", self.core)
        for i, pair in enumerate(self.incompatible):
            self._known(f"incompatible.{i}", pair)
        for i, names in enumerate(self.combinations):
            key, whole = f"combinations.{i}", (*self.core, *names)
            self._known(key, names)
            if twice := sorted({name for name in whole if whole.count(name) > 1}):
                raise ValueError(f"{key}: {', '.join(twice)} twice (the core is part of every combination)")
            for a, b in self.incompatible:
                if a in whole and b in whole:
                    raise ValueError(f"{key}: {a} and {b} are incompatible")
        return self

    def _known(self, key: str, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.categorizations:
                raise ValueError(f"{key}: no categorization {name!r}; there are {', '.join(self.categorizations)}")

    def deal(self, count: int, rng: random.Random) -> list[dict[str, str]]:
        """The categories of `count` questions, dealt out: each has its share as exactly as whole questions allow.

        Drawing each by itself would leave one category in twenty outside its 95% interval, by chance alone.
        """
        combinations = [self.combinations[i % len(self.combinations)] for i in range(count)]
        rng.shuffle(combinations)
        dealt: list[dict[str, str]] = [{} for _ in range(count)]
        for name, categories in self.categorizations.items():
            places = [i for i, combination in enumerate(combinations) if name in (*self.core, *combination)]
            hand = _apportioned({c: category.probability for c, category in categories.items()}, len(places))
            rng.shuffle(hand)
            for place, category in zip(places, hand, strict=True):
                dealt[place][name] = category
        return dealt

    def require(self, name: str, known: Set[str]) -> None:
        """Refuse categories that the code would have to act upon and does not know.

        Raises:
            UserError: the categorization `name`, if the plan has it, has other categories than `known`.
        """
        for category in self.categorizations.get(name, {}).keys() - known:
            raise UserError(
                f"categorizations.{name}: no category {category!r} is known; there are {', '.join(sorted(known))}"
            )

    def describe(self, drawn: dict[str, str]) -> list[str]:
        """What each category of `drawn` asks of a writer."""
        return [self.categorizations[name][category].description for name, category in drawn.items()]


def _apportioned(shares: dict[str, float], count: int) -> list[str]:
    """`count` names in their shares, the largest remainders first."""
    exact = {name: share * count for name, share in shares.items()}
    whole = {name: int(value) for name, value in exact.items()}
    rest = sorted(exact, key=lambda name: whole[name] - exact[name])[: count - sum(whole.values())]
    return [name for name in shares for _ in range(whole[name] + (name in rest))]


def load_plan(path: Path | None = None) -> Plan:
    """The plan in a YAML file, or the built-in one.

    Raises:
        UserError: no such file, no YAML, or a key or value that is refused, named in full.
    """
    path = path or BUILT_IN
    return parse_section(Plan, read_yaml(path), origin=str(path))


def plan_text(path: Path | None = None) -> str:
    """The file of a plan that `load_plan` has read, with its comments."""
    return (path or BUILT_IN).read_text(encoding="utf-8")

"""A weighted sum of rewards, written as an expression that is also its name."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.core.errors import ASKED_IN_VAIN, CannotExpress, EngineFault, RetrieverFault, UserError
from dragoman.core.types import Passage, Question
from dragoman.engines.base import Engine
from dragoman.rewards.base import Bounds, RewardFunction, Trajectory
from dragoman.rewards.discovery import find_reward
from dragoman.systems.base import StopReason

Setting = str | Mapping[str, float | Mapping[str, Any]]
"""`cover_em + 0.5 * f1`, or `{cover_em: 1, f1: {weight: 0.5, ...parameters}}`."""
RECORDED = ("cover_em", "em", "f1", "precision")
"""Scored for every trajectory whatever the reward is: they cost nothing, and say more to who reads an episode."""


@dataclass(frozen=True)
class Term:
    """One reward of a sum, with its weight and its parameters."""

    function: RewardFunction
    weight: float = 1.0
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Without the weight: `brevity`, or `brevity(words=3)`."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.parameters)
        return f"{self.function.name}({arguments})" if arguments else self.function.name

    def __str__(self) -> str:
        return self.name if self.weight == 1 else f"{self.weight:g} * {self.name}"


class Scored(NamedTuple):
    """What a trajectory has earned, by name, and why a term has no value: empty but for a call that failed and may pass."""

    values: dict[str, float | None]
    fault: str


@dataclass(frozen=True)
class Reward:
    """What trajectories are scored by. `name` is its canonical expression, and `shaped_name` that with its shaping."""

    terms: tuple[Term, ...]
    shaping: tuple[Term, ...] = ()
    llm: Engine | None = None
    """The frozen LLM, where a term asks it."""
    judge: Engine | None = None
    """Where a term asks one."""

    @classmethod
    def of(
        cls,
        setting: Setting,
        llm: Engine | None = None,
        judge: Callable[[], Engine] | None = None,
        *,
        shaping: Setting | None = None,
    ) -> Reward:
        """The reward of a setting.

        Args:
            llm: the frozen LLM, for the rewards that ask it, such as `delta_f1`.
            judge: opens the judge, for those that ask one, such as `nuggets`. None: it is the frozen LLM.
            shaping: what is added for a trainer to learn from, where it is known.

        Raises:
            UserError: a setting cannot be read, or names an unknown reward or parameter.
        """
        terms, added = _terms(setting), () if shaping is None else _terms(shaping)
        asked = frozenset().union(*(term.function.asks for term in terms + added))
        judging = (judge() if judge else llm) if "judge" in asked else None
        return cls(terms, added, llm if "llm" in asked else None, judging)

    @property
    def name(self) -> str:
        return " + ".join(map(str, self.terms))

    @property
    def shaped_name(self) -> str:
        return " + ".join(map(str, self.terms + self.shaping))

    @property
    def bounds(self) -> Bounds:
        """The lowest and the highest value of the sum, without its shaping."""
        return _bounds(self.terms)

    @property
    def shaped_bounds(self) -> Bounds:
        """Those of the sum, with its shaping or without: where that is not known it adds nothing."""
        (low, high), (less, more) = _bounds(self.terms), _bounds(self.shaping)
        return low + min(0.0, less), high + max(0.0, more)

    @property
    def of_answers(self) -> bool:
        """Whether one of its terms, shaping apart, reads the answer."""
        return _of_answers(self.terms)

    @property
    def needs_answers(self) -> bool:
        """Whether a trajectory without an answer has no score to learn from: then there is no shaping of the passages alone."""
        return self.of_answers and (not self.shaping or _of_answers(self.shaping))

    @property
    def modules(self) -> list[str]:
        """The modules of its functions, whose code decides what it gives."""
        return sorted({term.function.score.__module__ for term in self.terms + self.shaping})

    async def score(
        self, question: Question, trajectory: Trajectory, passages: Sequence[Passage]
    ) -> dict[str, float | None]:
        """The values of `scored`."""
        return (await self.scored(question, trajectory, passages)).values

    async def scored(self, question: Question, trajectory: Trajectory, passages: Sequence[Passage]) -> Scored:
        """The values of its terms and of `RECORDED` by name, and the sum by its name, without its shaping and with it.

        The sum is None where one of its terms is. So is a term whose call of an engine or retriever failed, and one that reads
        the answer where there is none. A shaping that is None, as of gold passages that nobody knows, adds nothing. But one whose call
        failed leaves the sum with it None, since siblings whose call did not fail would seem better. Where nobody was asked for the
        answer, the sum with its shaping is the shaping alone.

        Raises:
            UserError: a reward function failed, or asks its engine for what that can never be asked.
        """
        recorded = {name: Term(find_reward(name)) for name in RECORDED}
        terms = recorded | {term.name: term for term in self.terms + self.shaping}
        failed: list[str] = []
        values = await asyncio.gather(*(self._value(t, question, trajectory, passages, failed) for t in terms.values()))
        scores = dict(zip(terms, values, strict=True))
        parts = [None if (v := scores[term.name]) is None else term.weight * v for term in self.terms]
        total = None if None in parts else sum(part for part in parts if part is not None)
        known = [term.weight * value for term in self.shaping if (value := scores[term.name]) is not None]
        unasked = trajectory.stop is StopReason.NOT_ASKED and bool(known)
        shaped = sum(known, start=total or 0.0) if not failed and (unasked or total is not None) else None
        fault = next(filter(None, failed), "")
        return Scored(scores | {self.name: total} | {self.shaped_name: shaped}, fault)

    async def _value(
        self, term: Term, question: Question, trajectory: Trajectory, passages: Sequence[Passage], failed: list[str]
    ) -> float | None:
        """What it gives. Each call that failed is added to `failed`: why, or an empty text where asking again is no use."""
        if trajectory.answer is None and term.function.of_answers:
            return None
        parameters = dict(term.parameters) | {name: getattr(self, name) for name in term.function.asks}
        try:
            value = term.function.score(question, trajectory, passages, **parameters)
            return await value if inspect.isawaitable(value) else value
        except CannotExpress as e:
            raise UserError(f"reward {term.name}: no answer can be scored: {e}") from None
        except ASKED_IN_VAIN:
            failed.append("")
            return None
        except (EngineFault, RetrieverFault) as e:
            failed.append(f"reward {term.name}: {e}")
            return None
        except Exception as e:
            raise UserError(f"reward {term.name}, question {question.id}: {type(e).__name__}: {e}") from e


def expression(setting: Setting) -> str:
    """The canonical form of a setting, which names the reward in episodes.

    Raises:
        UserError: as in `Reward.of`.
    """
    return Reward.of(setting).name


def _bounds(terms: Sequence[Term]) -> Bounds:
    # 0 times infinity is nan
    ends = [sorted(term.weight * end if term.weight else 0.0 for end in term.function.bounds) for term in terms]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _of_answers(terms: Sequence[Term]) -> bool:
    return any(term.function.of_answers for term in terms)


def _terms(setting: Setting) -> tuple[Term, ...]:
    return tuple(_parse(setting) if isinstance(setting, str) else _from_mapping(setting))


def _parse(text: str) -> list[Term]:
    def terms(node: ast.expr) -> list[Term]:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return [*terms(left), *terms(right)]
            case ast.BinOp(weight, ast.Mult(), reward):
                return [term(reward, ast.literal_eval(weight))]
        return [term(node, 1)]

    def term(node: ast.expr, weight: Any) -> Term:
        match node:
            case ast.Name(name):
                return _term(name, weight, {})
            case ast.Call(ast.Name(name), [], keywords):
                return _term(name, weight, {str(k.arg): ast.literal_eval(k.value) for k in keywords})
        raise ValueError

    try:
        return terms(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise UserError(f"{text!r}: write a reward as `cover_em + 0.5 * f1`, parameters in brackets") from None


def _from_mapping(setting: Mapping[str, Any]) -> list[Term]:
    terms = []
    for name, value in setting.items():
        fields = dict(value) if isinstance(value, Mapping) else {"weight": value}
        terms.append(_term(name, fields.pop("weight", 1), fields))
    if not terms:
        raise UserError("a reward needs at least one term")
    return terms


def _term(name: str, weight: Any, parameters: Mapping[str, Any]) -> Term:
    function = find_reward(name)
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        raise UserError(f"reward {name}: its weight {weight!r} is not a number")
    if unknown := sorted(set(parameters) - function.parameters):
        known = ", ".join(sorted(function.parameters)) or "none"
        raise UserError(f"reward {name}: no parameter {unknown[0]!r}; it has {known}")
    return Term(function, float(weight), tuple(sorted(parameters.items())))

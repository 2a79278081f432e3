"""Which options are taken at marks, and with what probability: the policy of a listed decision, exactly.

A choice is a softmax over its options; in a selection each option is in with the sigmoid of its logit, independently.
Several actions for one state are drawn without replacement, by the Gumbel top-k trick (Kool et al. 2019), so that none
of a tree's siblings is there twice. What is drawn so is no sample of the policy: a likely action is there more often than not,
whatever its share. So each comes with the chance that it was to be there, by which its probability is divided.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

ENUMERATED = 12
"""Selections out of more options than this are not enumerated: there are 2^n of them."""


@dataclass(frozen=True)
class Taken:
    """An action at marks: the places of its options, and the log-probability of each choice that makes it up, in nats."""

    places: tuple[int, ...]
    logprobs: tuple[float, ...]
    inclusion: float = 1.0
    """The chance that it was to be among its siblings; 1 where nothing was left out."""

    @property
    def probability(self) -> float:
        return math.exp(sum(self.logprobs))


def taken(logits: Sequence[float], many: bool, places: Sequence[int], temperature: float = 1.0) -> Taken:
    """An action with its log-probabilities: one for a choice, one for each option of a selection.

    Args:
        temperature: 0 stands for the probabilities at 1, since those of a greedy policy say nothing.
    """
    scaled = [logit / (temperature or 1.0) for logit in logits]
    if many:
        inside = set(places)
        logprobs = tuple(_log_sigmoid(z if i in inside else -z) for i, z in enumerate(scaled))
    else:
        top = max(scaled)
        total = top + math.log(sum(math.exp(z - top) for z in scaled))
        logprobs = (scaled[places[0]] - total,)
    return Taken(tuple(sorted(places)), logprobs)


def likeliest(logits: Sequence[float], many: bool) -> tuple[int, ...]:
    """What a greedy policy takes. On a tie, the first of a choice, and nothing of a selection."""
    if many:
        return tuple(i for i, logit in enumerate(logits) if logit > 0)
    return (max(range(len(logits)), key=lambda i: logits[i]),)


def draw(
    logits: Sequence[float], many: bool, count: int, temperature: float, rng: random.Random, kinds: Sequence[str] = ()
) -> list[Taken]:
    """Up to `count` different actions, each sampled from what is left; at temperature 0 the likeliest alone.

    Args:
        kinds: of the options of a choice. Where they are given, the best draw of each kind comes first, whatever `count`.
    """
    if temperature == 0:
        return [taken(logits, many, likeliest(logits, many))]
    actions = _actions(logits, many, temperature, rng)
    perturbed = sorted(((sum(action.logprobs) + _gumbel(rng), action) for action in actions), key=lambda x: -x[0])
    by_kind: dict[str, list[tuple[float, Taken]]] = {}
    for key, action in perturbed:
        by_kind.setdefault(kinds[action.places[0]] if kinds else "", []).append((key, action))
    forced = [of_kind[0] for of_kind in by_kind.values()] if kinds else []
    chosen = forced + [x for x in perturbed if x not in forced][: max(0, count - len(forced))]
    best_left_out = next((key for key, action in perturbed if (key, action) not in chosen), -math.inf)
    with_chances = {
        action.places: action
        for of_kind in by_kind.values()
        for action in _with_chances(of_kind, sum(x in chosen for x in of_kind), best_left_out)
    }
    return [with_chances[action.places] for _, action in chosen]


def _with_chances(perturbed: Sequence[tuple[float, Taken]], count: int, best_left_out: float) -> list[Taken]:
    """The first so many of a kind, each with its chance to be drawn, normalised so that together they stand for the kind.

    An action of log-probability phi is drawn where its perturbed one is above kappa: q = 1 - exp(-exp(phi - kappa)). Sums of p / q
    are unbiased (Kool et al. 2019, section 4.1); divided by the sum of p / q that was drawn, over that of all, they vary less
    (section 4.2).

    The only one of a kind would be left out if it were below the next best of that kind. One of several would then still be drawn
    as long as it is above all that are left out, of whatever kind: another is the best of its kind.

    Args:
        perturbed: log-probabilities with Gumbel noise, the highest first, and the actions: those of one kind.
        best_left_out: the highest of all kinds that is not drawn; -infinity where all are.
    """
    first = [action for _, action in perturbed[:count]]
    whole = sum(action.probability for _, action in perturbed)
    second = perturbed[1][0] if len(perturbed) > 1 else -math.inf
    kappa = second if count == 1 else best_left_out
    if kappa == -math.inf or not whole:  # a kind that the policy would never take weighs nothing in any case
        return first
    chances = [max(-math.expm1(-math.exp(min(sum(a.logprobs) - kappa, 700.0))), 1e-300) for a in first]
    stand_for = sum(a.probability / q for a, q in zip(first, chances, strict=True))
    if not stand_for:  # by rounding: the others weigh next to nothing, too
        return first
    return [replace(a, inclusion=q * stand_for / whole) for a, q in zip(first, chances, strict=True)]


def _actions(logits: Sequence[float], many: bool, temperature: float, rng: random.Random) -> list[Taken]:
    """All actions; of a selection that has too many of them, those over the least certain options."""
    if not many:
        return [taken(logits, many, [i], temperature) for i in range(len(logits))]
    unsure = sorted(range(len(logits)), key=lambda i: abs(logits[i]))[:ENUMERATED]
    certain = [
        i
        for i, logit in enumerate(logits)
        if i not in unsure and rng.random() < math.exp(_log_sigmoid(logit / temperature))
    ]
    return [
        taken(logits, many, [*certain, *some], temperature)
        for size in range(len(unsure) + 1)
        for some in itertools.combinations(unsure, size)
    ]


def _log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


def _gumbel(rng: random.Random) -> float:
    return -math.log(-math.log(rng.random() or 1e-300))

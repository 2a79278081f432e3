"""Ratios of seconds within one run, with an interval over repeats.

Repeats are few, and a bootstrap of three is too narrow, so the interval is by Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.core.stats import student_interval


@dataclass(frozen=True)
class Sample:
    """Seconds of each contestant in one repeat."""

    repeat: int
    seconds: Mapping[str, float]


def ratio(samples: Sequence[Sample], slower: str, base: str) -> tuple[float, float, float]:
    """How many times the seconds of `base` does `slower` take: mean of the repeats' ratios, and its 95% interval.

    A single repeat has no interval: it is infinite.
    """
    ratios = [s.seconds[slower] / s.seconds[base] for s in samples]
    if len(ratios) < 2:
        return ratios[0], -math.inf, math.inf
    interval = student_interval(ratios, 0.95)
    return interval["mean"], interval["low"], interval["high"]


def report(title: str, samples: Sequence[Sample], *, base: str) -> None:
    """Print mean seconds of each contestant, and its ratio to `base`."""
    print(f"{title}, {len(samples)} repeats")
    for name in samples[0].seconds:
        mean = np.mean([s.seconds[name] for s in samples])
        factor, low, high = ratio(samples, name, base)
        print(f"  {name:24} {mean:8.2f} s   {factor:5.2f} x {base} [{low:.2f}, {high:.2f}]")

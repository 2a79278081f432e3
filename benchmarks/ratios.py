"""Ratios of seconds within one run, with a bootstrap interval over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sample:
    """Seconds of each contestant in one repeat."""

    repeat: int
    seconds: Mapping[str, float]


def ratio(samples: Sequence[Sample], slower: str, base: str) -> tuple[float, float, float]:
    """How many times the seconds of `base` does `slower` take: mean of the repeats' ratios, and its 95% interval."""
    ratios = np.array([s.seconds[slower] / s.seconds[base] for s in samples])
    draws = np.random.default_rng(0).integers(0, len(ratios), (2000, len(ratios)))
    low, high = np.percentile(ratios[draws].mean(axis=1), [2.5, 97.5])
    return float(ratios.mean()), float(low), float(high)


def report(title: str, samples: Sequence[Sample], *, base: str) -> None:
    """Print mean seconds of each contestant, and its ratio to `base`."""
    print(f"{title}, {len(samples)} repeats")
    for name in samples[0].seconds:
        mean = np.mean([s.seconds[name] for s in samples])
        factor, low, high = ratio(samples, name, base)
        print(f"  {name:24} {mean:8.2f} s   {factor:5.2f} x {base} [{low:.2f}, {high:.2f}]")

"""Statistics that more than one package needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev

FEWEST_EXPECTED = 5.0  # Cochran (1954): with fewer in a cell, chi-square no longer follows its distribution


def chi_square(counts: Mapping[str, int], probabilities: Mapping[str, float]) -> float:
    """The p-value of Pearson's test that `counts` were drawn with `probabilities`, all above 0.

    From the rarest on, categories are put together until five of each are expected. Where that leaves a single one, nothing
    speaks against the counts: 1.
    """
    from scipy.stats import chisquare

    n = sum(counts.get(category, 0) for category in probabilities)
    expected, observed = [0.0], [0]
    for p, category in sorted((p, category) for category, p in probabilities.items()):
        if expected[-1] >= FEWEST_EXPECTED:
            expected.append(0.0)
            observed.append(0)
        expected[-1] += n * p
        observed[-1] += counts.get(category, 0)
    if expected[-1] < FEWEST_EXPECTED and len(expected) > 1:
        rest, count = expected.pop(), observed.pop()
        expected[-1] += rest
        observed[-1] += count
    if len(expected) < 2:
        return 1.0
    scale = n / sum(expected)  # probabilities add up to 1 within the plan's tolerance, and scipy's is smaller
    return float(chisquare(observed, [e * scale for e in expected]).pvalue)


def bootstrap_interval(values: Sequence[float], *, resamples: int, seed: int) -> dict[str, float]:
    """The mean with its 95% bootstrap interval: percentiles of the means of resamples of equal size."""
    import numpy as np

    sample = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(sample), (resamples, len(sample)))
    low, high = np.percentile(sample[drawn].mean(axis=1), [2.5, 97.5])
    return {"mean": round(float(sample.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def bootstrap_difference(
    first: Sequence[float], second: Sequence[float], *, resamples: int, seed: int
) -> dict[str, float]:
    """The mean of one sample minus that of another, with its 95% bootstrap interval: each sample is drawn again by itself."""
    import numpy as np

    random = np.random.default_rng(seed)
    samples = [np.asarray(values, dtype=float) for values in (first, second)]
    means = [s[random.integers(0, len(s), (resamples, len(s)))].mean(axis=1) for s in samples]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    mean = float(samples[0].mean() - samples[1].mean())
    return {"mean": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def student_interval(values: Sequence[float], level: float) -> dict[str, float]:
    """The mean with its interval by Student's t. Of high levels a bootstrap says little: few resamples lie that far out.

    Args:
        values: at least two.
        level: 0.99 of 99%.
    """
    from scipy.special import stdtrit

    middle = fmean(values)
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values, middle) / math.sqrt(len(values))
    return {"mean": round(middle, 4), "low": round(middle - half, 4), "high": round(middle + half, 4)}


def smallest_detectable(*samples: Sequence[float]) -> float | None:
    """The smallest true mean of paired differences that so many of them would show, four times out of five.

    That is, with a power of 80% in a two-sided test at 5%: (1.96 + 0.84) standard errors of the mean. Of two samples that are
    not paired it is the smallest difference of their means, which has the errors of both.

    Args:
        samples: the differences, or the values of either side.

    Returns:
        To four places. None where nothing says how values scatter: there is one alone, or all are equal.
    """
    if any(len(values) < 2 for values in samples):
        return None
    error = math.hypot(*(stdev(values) / math.sqrt(len(values)) for values in samples))
    return round((NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)) * error, 4) or None


def smallest_window(reference: int, distance: float, level: float) -> int | None:
    """The fewest values that show a difference from a reference four times out of five; None where no number of them does.

    A two-sample Kolmogorov-Smirnov test finds distances above sqrt(-ln(level / 2) / 2) * sqrt(1/n + 1/m). Of a true distance,
    what is found scatters by at most sqrt(1/n + 1/m) / 2, of which 0.84 are added.

    Args:
        reference: m, the values of the reference.
        distance: the largest one of the two distribution functions, from 0 to 1.
        level: of the test.
    """
    rest = (distance / _factor(level)) ** 2 - 1 / reference
    return math.ceil(1 / rest) if rest > 0 else None


def detectable_distance(reference: int, window: int, level: float) -> float:
    """The smallest distance that so many values show four times out of five; see `smallest_window`."""
    return min(1.0, _factor(level) * math.sqrt(1 / reference + 1 / window))


def _factor(level: float) -> float:
    return math.sqrt(-math.log(level / 2) / 2) + NormalDist().inv_cdf(0.8) / 2

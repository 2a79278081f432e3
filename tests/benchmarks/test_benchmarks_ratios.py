"""Ratios of seconds, and their intervals."""

import math

import pytest

from benchmarks.ratios import Sample, ratio


def test_the_interval_of_a_few_repeats_is_students():
    samples = [Sample(i, {"a": seconds, "b": 1.0}) for i, seconds in enumerate((1.0, 2.0, 3.0))]
    # mean 2, standard error 1 / sqrt(3), and 4.3027 of them at 95% with two degrees of freedom
    assert ratio(samples, "a", "b") == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)


def test_a_single_repeat_has_no_interval():
    assert ratio([Sample(0, {"a": 3.0, "b": 2.0})], "a", "b") == (1.5, -math.inf, math.inf)

"""Confidence intervals inside one run: they cover the truth as often as they claim."""

import math

import numpy as np
import pytest
from benchmarks.coverage import coverage, simulated

from penstock.metrics.intervals import (
    beta_quantile,
    clopper_pearson,
    mean_interval,
    needed_for,
    percentile_interval,
    rate_interval,
    regularised_beta,
    share_interval,
)


def autocorrelated(count: int, correlation: float) -> np.ndarray:
    return simulated("normal", 1, count, correlation)[0]


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize(("margin", "percent"), [("normal", None), ("lognormal", None), ("normal", 90), ("normal", 99)])
def test_intervals_of_a_short_simulation_cover_the_truth(margin, percent, correlation):
    assert coverage(margin, 60, 2000, correlation, percent).is_as_claimed


def test_few_independent_values_have_a_wide_interval_that_contains_the_mean():
    """100 values with a correlation of 0.9 tell as much as 5 independent ones."""
    found = coverage("lognormal", 100, 100, 0.9, None)
    assert found.given >= 95
    assert found.is_as_claimed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("margin", "percent"),
    [
        ("normal", None),
        ("normal", 50),
        ("normal", 90),
        ("normal", 99),
        ("exponential", None),
        ("exponential", 90),
        ("lognormal", None),
        ("bimodal", None),
        ("bimodal", 90),
    ],
)
@pytest.mark.parametrize(("count", "correlation"), [(1000, 0.0), (400, 0.7), (400, 0.9), (5000, 0.9)])
def test_intervals_cover_the_truth_as_often_as_they_claim(margin, count, correlation, percent):
    assert coverage(margin, 400, count, correlation, percent).is_as_claimed


def test_bounds_of_a_percentile_are_equally_often_exceeded():
    """The low bound of a median is as far from its rank as the high one, even if 400 values tell as much as 8."""
    values = np.repeat(np.random.default_rng(2).permutation(16.0 * np.arange(25)), 16) + np.tile(np.arange(16.0), 25)
    found = percentile_interval(values, np.sort(values), 50)
    assert found.low + found.high == pytest.approx(399, abs=2)


@pytest.mark.parametrize("percent", [1, 50, 99])
@pytest.mark.parametrize("waves", [2, 4, 8])
def test_percentile_of_few_independent_values_has_both_bounds_or_says_why_not(percent, waves):
    values = np.sin(np.arange(100) * 2 * math.pi * waves / 100)
    found = percentile_interval(values, np.sort(values), percent)
    assert found.low is None or found.high is None or found.low <= found.high
    assert (found.note is None) == (found.low is not None and found.high is not None)


def test_interval_of_skewed_values_reaches_further_into_the_long_tail():
    values = simulated("lognormal", 1, 1000, 0.0)[0]
    found = mean_interval(values)
    assert found.high - values.mean() > 1.1 * (values.mean() - found.low)


def test_interval_of_a_correlated_series_is_wider_than_that_of_an_independent_one():
    correlated, independent = (mean_interval(autocorrelated(4000, c)) for c in (0.9, 0.0))
    assert correlated.half_width > 2 * independent.half_width
    assert correlated.effective_count < 1000 < independent.effective_count


def test_percentile_without_enough_requests_has_no_upper_bound_and_says_why():
    values = autocorrelated(200, 0.0)
    found = percentile_interval(values, np.sort(values), 99)
    assert found.high is None
    assert "368 independent values are needed" in found.note
    assert needed_for(99) == 368
    assert mean_interval(values[:10]).note == "25 values are needed, and there are 10"


def test_series_with_one_trend_has_no_interval():
    assert "trend" in mean_interval(np.arange(1000.0)).note


@pytest.mark.parametrize("value", [3.0, 0.1, 1e-9, 0.0])
@pytest.mark.parametrize("count", [500, 777])
def test_equal_values_have_an_interval_of_no_width(value, count):
    values = np.full(count, value)
    found = mean_interval(values)
    assert (found.low, found.high) == pytest.approx((value, value), rel=1e-12)
    assert found.effective_count == count
    found = percentile_interval(values, values, 50)
    assert (found.low, found.high) == (value, value)


def test_rate_is_covered_by_its_interval():
    times = np.sort(np.random.default_rng(3).uniform(0, 100, 5000))
    found = rate_interval(times, None, (0.0, 100.0))
    assert found.low < 50 < found.high
    assert found.half_width < 4
    doubled = rate_interval(times, np.full(5000, 2.0), (0.0, 100.0))
    assert doubled.low == pytest.approx(2 * found.low)


def test_interval_of_a_rate_that_changes_slowly_does_not_depend_on_the_unit_of_time():
    rates = 100 * np.exp(0.3 * autocorrelated(400, 0.9))
    times = np.cumsum(np.repeat(1 / rates, 50))
    seconds, nanoseconds = (rate_interval(scale * times, None, (0.0, scale * times[-1])) for scale in (1.0, 1e9))
    assert nanoseconds.batches == seconds.batches
    assert 1e9 * nanoseconds.low == pytest.approx(seconds.low)
    assert 1e9 * nanoseconds.high == pytest.approx(seconds.high)
    assert seconds.effective_count < 100


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (95, 100, 0.8872, 0.9836)],
)
def test_clopper_pearson_bounds_are_those_of_the_tables(successes, count, low, high):
    assert clopper_pearson(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_beta_function_agrees_with_the_binomial_sum():
    n, k, p = 40, 12, 0.37
    tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert regularised_beta(p, k, n - k + 1) == pytest.approx(tail, rel=1e-10)
    assert regularised_beta(beta_quantile(0.3, 2.5, 7.0), 2.5, 7.0) == pytest.approx(0.3, rel=1e-9)


def test_share_without_failures_has_the_bound_of_the_rule_of_three():
    found = share_interval(np.zeros(300))
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 300))

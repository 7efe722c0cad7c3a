"""Confidence intervals inside one run: they cover the truth as often as they claim."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import pytest

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


@lru_cache(maxsize=4)
def simulated(margin: str, runs: int, count: int, correlation: float) -> np.ndarray:
    """Return series of a first-order autoregressive process, one in each row, with the standard normal distribution, its
    exponential (lognormal), or the exponential distribution."""
    rng = np.random.default_rng(1)
    series = np.empty((count, runs))
    if margin == "exponential":
        value = rng.exponential(size=runs)
        for i in range(count):
            value = correlation * value + (rng.random(runs) >= correlation) * rng.exponential(size=runs)
            series[i] = value
    else:
        value = rng.standard_normal(runs)
        for i in range(count):
            value = correlation * value + math.sqrt(1 - correlation**2) * rng.standard_normal(runs)
            series[i] = value
    return np.ascontiguousarray(np.exp(series.T) if margin == "lognormal" else series.T)


def autocorrelated(count: int, correlation: float) -> np.ndarray:
    return simulated("normal", 1, count, correlation)[0]


MEANS = {"normal": 0.0, "lognormal": math.exp(0.5), "exponential": 1.0}


def truth(margin: str, percent: float | None) -> float:
    if percent is None:
        return MEANS[margin]
    if margin == "exponential":
        return -math.log(1 - percent / 100)
    normal = NormalDist().inv_cdf(percent / 100)
    return math.exp(normal) if margin == "lognormal" else normal


def coverage(margin: str, runs: int, count: int, correlation: float, percent: float | None) -> float:
    covered = 0
    for values in simulated(margin, runs, count, correlation):
        found = mean_interval(values) if percent is None else percentile_interval(values, np.sort(values), percent)
        # A bound that the sample cannot give is no claim about the truth on that side.
        low = -math.inf if found.low is None else found.low
        high = math.inf if found.high is None else found.high
        covered += low <= truth(margin, percent) <= high
    return covered / runs


def least(runs: int) -> float:
    """Return the coverage that 95 % intervals reach in 99.9 % of all simulations."""
    return 0.95 - 3.1 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize(("margin", "percent"), [("normal", None), ("lognormal", None), ("normal", 90), ("normal", 99)])
def test_intervals_of_a_short_simulation_cover_the_truth(margin, percent, correlation):
    assert coverage(margin, 60, 2000, correlation, percent) >= least(60)


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
    ],
)
@pytest.mark.parametrize(("count", "correlation"), [(1000, 0.0), (400, 0.7), (1000, 0.9), (5000, 0.9)])
def test_intervals_cover_the_truth_as_often_as_they_claim(margin, count, correlation, percent):
    assert coverage(margin, 400, count, correlation, percent) >= least(400)


@pytest.mark.parametrize("percent", [None, 50])
def test_too_few_independent_values_have_no_interval(percent):
    values = np.sin(np.arange(100) * 2 * math.pi / 25)
    found = mean_interval(values) if percent is None else percentile_interval(values, np.sort(values), percent)
    assert (found.low, found.high) == (None, None)
    assert "10 independent values are needed" in found.note


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


def test_equal_values_have_an_interval_of_no_width():
    values = np.full(500, 3.0)
    assert (mean_interval(values).low, mean_interval(values).high) == (3.0, 3.0)
    found = percentile_interval(values, values, 50)
    assert (found.low, found.high) == (3.0, 3.0)


def test_rate_is_covered_by_its_interval():
    times = np.sort(np.random.default_rng(3).uniform(0, 100, 5000))
    found = rate_interval(times, None, (0.0, 100.0))
    assert found.low < 50 < found.high
    assert found.half_width < 4
    doubled = rate_interval(times, np.full(5000, 2.0), (0.0, 100.0))
    assert doubled.low == pytest.approx(2 * found.low)


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

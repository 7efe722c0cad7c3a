"""Confidence intervals inside one run: they cover the truth as often as they claim."""

import math

import numpy as np
import pytest
from benchmarks.coverage import cells, error_cells
from benchmarks.simulated_runs import PROCESSES, closed_loop, constant, open_loop, series

from penstock.metrics.dependence import InFlight, requests_in_flight
from penstock.metrics.intervals import (
    Sample,
    beta_quantile,
    clopper_pearson,
    needed_for,
    product_interval,
    rate_interval,
    regularised_beta,
    share_interval,
)


def autocorrelated(count: int, correlation: float, margin: str = "normal") -> np.ndarray:
    return series(margin, correlation)(np.random.default_rng(1), 1, count, 0).latencies[0] - 20


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("independent, lognormal", 400),
        ("AR(1) 0.9", 5000),
        ("M/M/4 at 0.8", 5000),
        ("M/G/4 at 0.7", 1000),
        ("closed loop, 64, mixed", 1000),
        ("batches of 8", 1000),
    ],
)
def test_few_simulated_runs_print_an_interval_that_misses_the_truth(name: str, count: int) -> None:
    process = next(each for each in PROCESSES if each.name == name)
    found = cells(process, 100, 1, (count,))
    assert {cell.figure: cell.missed for cell in found if cell.missed > 12} == {}


@pytest.mark.parametrize(("load", "count"), [(0.8, 1000), (0.9, 1000), (0.9, 5000)])
def test_short_run_on_a_busy_queue_has_no_interval_of_the_p99(load: float, count: int) -> None:
    """At these loads, the requests of a queue with four slots are correlated over 87 and 351 of them."""
    process = next(each for each in PROCESSES if each.name == f"M/M/4 at {load}")
    (p99,) = (cell for cell in cells(process, 50, 2, (count,)) if cell.figure == "p99")
    assert p99.printed == 0


def test_missing_interval_says_how_many_requests_would_do() -> None:
    """A p99 at a load of 0.9 needs about 130,000 requests. A run of 1,000 is too short to tell."""
    runs = open_loop(4, 0.9)(np.random.default_rng(3), 1, 50_000, 5000)
    starts, latencies = runs.starts[0], runs.latencies[0]
    counts = requests_in_flight(starts, starts + latencies)[runs.before :]
    latencies = latencies[runs.before :]
    long = Sample(latencies, InFlight(counts)).percentile(99)
    assert long.high is None
    assert 43_000 < int(long.advice.removeprefix("about ").removesuffix(" requests").replace(",", "")) < 390_000
    short = Sample(latencies[:1000], InFlight(counts[:1000])).percentile(99)
    assert short.advice.startswith("more than ")


def test_throughput_of_requests_in_lockstep_has_a_narrow_interval() -> None:
    """60 requests at a time, all of the same length, for ten rounds."""
    runs = closed_loop(60, None, constant)(np.random.default_rng(4), 1, 600, 0)
    starts, ends = runs.starts[0], runs.starts[0] + runs.latencies[0]
    found = rate_interval(ends, None, InFlight(requests_in_flight(starts, ends)), (starts[0], starts[-1]))
    assert found.low <= 60 / runs.latencies.mean() <= found.high
    assert found.half_width < 0.03 * 60
    latencies = Sample(runs.latencies[0], InFlight(requests_in_flight(starts, ends))).dependence
    goodput = product_interval(found, share_interval(np.ones(600), None, latencies))
    assert goodput.half_width < 0.06 * 60


def test_bounds_of_a_percentile_are_equally_often_exceeded():
    """The low bound of a median is as far from its rank as the high one, even if the values come in groups of 16."""
    groups = np.random.default_rng(2).permutation(16.0 * np.arange(400))
    values = np.repeat(groups, 16) + np.tile(np.arange(16.0), 400)
    found = Sample(values).percentile(50)
    assert found.low + found.high == pytest.approx(6399, abs=4)


@pytest.mark.parametrize("percent", [1, 50, 99])
@pytest.mark.parametrize("waves", [2, 4, 8])
def test_percentile_of_few_independent_values_has_both_bounds_or_says_why_not(percent, waves):
    values = np.sin(np.arange(100) * 2 * math.pi * waves / 100)
    found = Sample(values).percentile(percent)
    assert found.low is None or found.high is None or found.low <= found.high
    assert (found.note is None) == (found.low is not None and found.high is not None)


def test_interval_of_skewed_values_reaches_further_into_the_long_tail():
    values = autocorrelated(1000, 0.0, "lognormal")
    found = Sample(values).mean()
    assert found.high - values.mean() > 1.1 * (values.mean() - found.low)


def test_interval_of_a_correlated_series_is_wider_than_that_of_an_independent_one():
    correlated, independent = (Sample(autocorrelated(4000, c)).mean() for c in (0.9, 0.0))
    assert correlated.half_width > 2 * independent.half_width
    assert correlated.effective_count < 1000 < independent.effective_count


def test_percentile_without_enough_requests_has_no_upper_bound_and_says_why():
    values = autocorrelated(200, 0.0)
    found = Sample(values).percentile(99)
    assert found.high is None
    assert "368 independent values are needed" in found.note
    assert needed_for(99) == 368
    assert Sample(values[:10]).mean().note == "25 values are needed, and there are 10"


def test_series_with_one_trend_has_no_interval():
    assert "trend" in Sample(np.arange(1000.0)).mean().note


@pytest.mark.parametrize("value", [3.0, 0.1, 1e-9, 0.0])
@pytest.mark.parametrize("count", [500, 777])
def test_equal_values_have_an_interval_of_no_width(value, count):
    values = np.full(count, value)
    found = Sample(values).mean()
    assert (found.low, found.high) == pytest.approx((value, value), rel=1e-12)
    assert found.effective_count == count
    found = Sample(values).percentile(50)
    assert (found.low, found.high) == (value, value)


def test_rate_is_covered_by_its_interval():
    times = np.sort(np.random.default_rng(3).uniform(0, 100, 5000))
    found = rate_interval(times, None)
    assert found.low < 50 < found.high
    assert found.half_width < 4
    doubled = rate_interval(times, np.full(5000, 2.0))
    assert doubled.low == pytest.approx(2 * found.low)


def test_interval_of_a_rate_that_changes_slowly_does_not_depend_on_the_unit_of_time():
    rates = 100 * np.exp(0.3 * autocorrelated(400, 0.9))
    times = np.cumsum(np.repeat(1 / rates, 50))
    seconds, nanoseconds = (rate_interval(scale * times, None) for scale in (1.0, 1e9))
    assert nanoseconds.effective_count == pytest.approx(seconds.effective_count)
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


def test_quantile_that_is_too_small_for_a_float_is_found() -> None:
    assert beta_quantile(0.025, 1e-3, 40.0) < 1e-14


def test_bound_of_a_share_without_failures_allows_for_bursts_of_twenty() -> None:
    found = share_interval(np.zeros(4000))
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 200), rel=0.01)


def test_few_shares_of_failures_in_bursts_print_an_interval_that_misses_the_truth() -> None:
    """At 1,000 requests, a third of the runs has no failure."""
    found = error_cells(100, 1, (400, 1000))
    assert {cell: cell.missed for cell in found if cell.missed > 12} == {}


def test_steady_state_rows_of_a_run_that_starts_empty_cover_the_stationary_figures() -> None:
    process = next(each for each in PROCESSES if each.in_the_long_run is not None)
    found = cells(process, 50, 1, (5000,))
    assert {cell.figure: cell.missed for cell in found if cell.missed > 7} == {}
    assert sum(cell.printed for cell in found) > 3 * 50

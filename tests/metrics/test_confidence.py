"""Confidence intervals of repeated runs, against tables and arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.metrics.confidence import aggregate, interval, t_critical
from penstock.metrics.convergence import distance, relative_spread
from penstock.metrics.statistics import Stats

# Two-sided quantiles from the tables of Student's distribution.
TABLE = [
    (1, 0.95, 12.7062047),
    (2, 0.95, 4.3026527),
    (3, 0.95, 3.1824463),
    (4, 0.95, 2.7764451),
    (9, 0.95, 2.2621572),
    (4, 0.99, 4.6040949),
    (9, 0.9, 1.8331129),
    (120, 0.95, 1.9799304),
]


@pytest.mark.parametrize(("degrees", "level", "expected"), TABLE)
def test_quantiles_are_those_of_the_tables(degrees: int, level: float, expected: float) -> None:
    assert t_critical(degrees, level) == pytest.approx(expected, abs=1e-7)


def test_interval_agrees_with_a_hand_calculation() -> None:
    # mean 12, deviations -2, 0, 2: s = 2, standard error 2 / sqrt(3), t for two degrees 4.3026527
    figure = interval([10.0, 12.0, 14.0], 0.95, "ms")
    half = 4.3026527 * 2 / math.sqrt(3)
    assert (figure.mean, figure.std, figure.min, figure.max, figure.unit) == (12, 2, 10, 14, "ms")
    assert figure.cv == pytest.approx(1 / 6)
    assert figure.se == pytest.approx(2 / math.sqrt(3))
    assert (figure.ci_low, figure.ci_high) == (pytest.approx(12 - half), pytest.approx(12 + half))


def test_figures_without_a_spread() -> None:
    one = interval([5.0], 0.95)
    assert (one.mean, one.std, one.ci_low, one.half_width) == (5, None, None, None)
    zero = interval([0.0, 0.0], 0.95)
    assert (zero.mean, zero.std, zero.cv, zero.ci_low) == (0, 0, None, 0)


def test_only_statistics_that_every_run_has_are_aggregated() -> None:
    runs = [
        {"request_latency": Stats("ms", avg=10, p50=9, count=4), "request_throughput": Stats("requests/sec", avg=2)},
        {"request_latency": Stats("ms", avg=20, count=4), "request_throughput": Stats("requests/sec", avg=4)},
    ]
    figures = aggregate(runs, 0.95)
    assert {name: figure.mean for name, figure in figures.items()} == {
        "request_latency_avg": 15,
        "request_throughput_avg": 3,
    }
    assert aggregate([], 0.95) == {}


def test_spread_is_relative_to_the_mean() -> None:
    assert relative_spread([10, 12, 14], "cv", 0.95) == pytest.approx(1 / 6)
    width = 2 * 4.3026527 * 2 / math.sqrt(3)
    assert relative_spread([10, 12, 14], "ci_width", 0.95) == pytest.approx(width / 12)
    assert relative_spread([0, 0, 0], "ci_width", 0.95) == 0
    assert relative_spread([-1, 0, 1], "cv", 0.95) is None


def test_distance_of_distributions() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert distance(a, a) == 0
    assert distance(a, a + 10) == 1
    assert distance(a, np.array([1.0, 2.0, 3.0, 9.0])) == 0.25

"""Arrival times of requests."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from penstock.schedule.arrivals import arrivals, constant, poisson

SECOND = 1_000_000_000


def first(times, count: int) -> list[int]:
    return list(islice(times, count))


@pytest.mark.parametrize("rate", [0.1, 1, 3, 7.5, 1000, 33333.3])
def test_constant_arrivals_are_exact_to_the_nanosecond(rate):
    times = first(constant(rate), 10_000)
    assert times[0] == 0
    assert all(abs(time - n * SECOND / rate) <= 0.5 for n, time in enumerate(times))


def test_rounding_errors_do_not_accumulate():
    assert first(constant(3), 3_000_001)[-1] == 1_000_000 * SECOND


@pytest.mark.parametrize("rate", [5.0, 2000.0])
def test_poisson_arrivals_have_independent_exponential_gaps(rate):
    times = np.array(first(poisson(rate, 1), 20_000))
    gaps = np.diff(times, prepend=0) / SECOND
    # 20,000 exponential gaps: mean within 3 %, standard deviation equal to the mean, no correlation.
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.03)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.05)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03
    # The counts in windows of equal length have a variance equal to their mean.
    counts = np.bincount((times / SECOND * rate / 20).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.2)
    assert (np.diff(times) >= 0).all()


def test_seed_determines_the_times():
    assert first(poisson(10, 7), 100) == first(poisson(10, 7), 100)
    assert first(poisson(10, 7), 100) != first(poisson(10, 8), 100)


def test_pattern_is_selected_by_name():
    assert first(arrivals("constant", 4, 1), 3) == [0, SECOND // 4, SECOND // 2]
    assert first(arrivals("poisson", 4, 1), 3) == first(poisson(4, 1), 3)

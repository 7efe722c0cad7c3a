"""Arrivals whose rate changes with time, against the area under the rate."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schedule.arrivals import Constant
from penstock.schedule.random_arrivals import Gamma, Poisson
from penstock.schedule.share import Share
from penstock.schedule.varying_rate import RatePoint, VaryingRate

SECOND = 1_000_000_000
NO_DATA: Any = None


def points(*pairs: tuple[float, float]) -> tuple[RatePoint, ...]:
    return tuple(RatePoint(*pair) for pair in pairs)


def count_until(arrivals: VaryingRate, seconds: float, seed: int = 1) -> int:
    times = arrivals.times(Share(), seed, NO_DATA)
    return sum(1 for _ in takewhile(lambda time: time is not None and time < seconds * SECOND, times))


def area(series: tuple[RatePoint, ...], seconds: float) -> float:
    """Return the area under the rate by a fine sum."""
    grid = np.linspace(0, seconds, 200_001)
    rates = np.interp(grid, [point.time_s for point in series], [point.rate for point in series])
    return float(np.mean((rates[1:] + rates[:-1]) / 2) * seconds)


@given(
    gaps=st.lists(st.floats(0.1, 5), min_size=1, max_size=5),
    rates=st.lists(st.floats(0, 200), min_size=6, max_size=6),
    until=st.floats(0.1, 20),
)
def test_constant_arrivals_are_the_area_under_the_rate(gaps: list[float], rates: list[float], until: float) -> None:
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    series = points(*zip(times.tolist(), rates, strict=False))
    assert count_until(VaryingRate(Constant(1.0), series), until) == pytest.approx(area(series, until), abs=1.5)


def test_ramp_ends_at_the_full_rate() -> None:
    ramp = VaryingRate(Constant(1.0), points((0, 0), (2, 50)))
    times = [time / SECOND for time in islice(ramp.times(Share(), 1, NO_DATA), 200) if time is not None]
    assert sum(time < 2 for time in times) == 50  # the area of the triangle
    assert np.diff([time for time in times if time > 2]) == pytest.approx(1 / 50)


def test_random_arrivals_follow_the_rate_on_average() -> None:
    series = points((0, 10), (10, 400), (20, 0), (30, 100))
    for process in (Poisson(1.0), Gamma(1.0, 0.5)):
        counts = [count_until(VaryingRate(process, series), 30, seed) for seed in range(20)]
        # 5,550 arrivals: the mean of 20 runs is within four standard errors, which are 0.6 % for the burstier process.
        assert np.mean(counts) == pytest.approx(area(series, 30), rel=0.024)


def test_nothing_arrives_after_the_rate_has_fallen_to_zero() -> None:
    times = list(VaryingRate(Constant(1.0), points((0, 10), (1, 0))).times(Share(), 1, NO_DATA))
    assert len(times) in (5, 6)


@pytest.mark.parametrize("smoothness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_chosen_shape(smoothness: float) -> None:
    times = np.array(list(islice(Gamma(200.0, smoothness).times(Share(), 3, NO_DATA), 40_000)))
    gaps = np.diff(times) / SECOND
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.04)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / smoothness, rel=0.06)


def test_any_number_of_workers_has_the_same_times() -> None:
    arrivals = VaryingRate(Poisson(1.0), points((0, 5), (3, 80)))
    alone = list(islice(arrivals.times(Share(), 1, NO_DATA), 120))
    shares = [list(islice(arrivals.times(Share(worker, 3), 1, NO_DATA), 40)) for worker in range(3)]
    assert [shares[number % 3][number // 3] for number in range(120)] == alone

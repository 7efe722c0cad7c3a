"""The logarithmic histogram: quantiles are at most 25 % too high."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.stats import LogHistogram, WireStats

durations = st.lists(st.integers(1, 2**45), min_size=1, max_size=200)


def histogram_of(values: list[int]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(durations, st.sampled_from([0.01, 0.1, 0.5, 0.9, 0.99, 1.0]))
def test_quantile_is_an_upper_bound_within_25_percent(values, q):
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    estimate = histogram_of(values).quantile(q)
    assert exact <= estimate <= max(exact * 1.25, exact + 1)


@given(durations, durations)
def test_merging_equals_adding_all_values(left, right):
    merged = histogram_of(left)
    merged.merge(histogram_of(right))
    assert merged == histogram_of(left + right)


def test_total_count_and_largest_are_exact():
    histogram = histogram_of([3, 1_000_000, 7])
    assert (histogram.n, histogram.total, histogram.largest) == (3, 1_000_010, 1_000_000)
    assert histogram.quantile(1.0) == 1_000_000


@pytest.mark.parametrize("value", [0, -1, -(10**9)])
def test_zero_and_negative_durations_count_as_the_shortest(value):
    histogram = histogram_of([value])
    assert histogram.n == 1
    assert histogram.quantile(0.5) <= 2


@pytest.mark.parametrize("value", range(1, 70))
def test_quantiles_of_short_durations_are_within_25_percent(value):
    assert value <= histogram_of([value, 10**9]).quantile(0.5) <= max(value * 1.25, value + 1)


def test_quantile_of_an_empty_histogram_is_zero():
    assert LogHistogram().quantile(0.99) == 0.0


def test_a_century_fits_into_the_buckets():
    assert histogram_of([100 * 365 * 86_400 * 10**9]).quantile(0.5) > 0


def test_stats_round_trip_through_msgpack():
    stats = WireStats(reads=3, stamped=2, stale=1)
    stats.delay.add(1234)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=WireStats) == stats

"""The histogram: quantiles within a quarter of a doubling, whatever goes in."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.stats import LogHistogram, WireStats

durations = st.lists(st.integers(1, 2**45), min_size=1, max_size=200)


def spread_of(values: list[int]) -> LogHistogram:
    spread = LogHistogram()
    for value in values:
        spread.add(value)
    return spread


@given(durations, st.sampled_from([0.01, 0.1, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_an_upper_bound_and_close(values, q):
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    found = spread_of(values).quantile(q)
    assert exact <= found <= max(exact * 1.25, exact + 1)


@given(durations, durations)
def test_merging_is_the_same_as_adding_all(left, right):
    merged = spread_of(left)
    merged.merge(spread_of(right))
    assert merged == spread_of(left + right)


def test_total_count_and_largest_are_exact():
    spread = spread_of([3, 1_000_000, 7])
    assert (spread.n, spread.total, spread.largest) == (3, 1_000_010, 1_000_000)
    assert spread.quantile(1.0) == 1_000_000


@pytest.mark.parametrize("value", [0, -1, -(10**9)])
def test_nothing_and_less_count_as_the_shortest(value):
    spread = spread_of([value])
    assert spread.n == 1
    assert spread.quantile(0.5) <= 2


@pytest.mark.parametrize("value", range(1, 70))
def test_short_durations_have_buckets_too(value):
    assert value <= spread_of([value, 10**9]).quantile(0.5) <= max(value * 1.25, value + 1)


def test_an_empty_one_has_no_quantiles():
    assert LogHistogram().quantile(0.99) == 0.0


def test_a_century_fits():
    assert spread_of([100 * 365 * 86_400 * 10**9]).quantile(0.5) > 0


def test_it_survives_the_way_into_the_log():
    gauge = WireStats(reads=3, stamped=2, stale=1)
    gauge.delay.add(1234)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(gauge), type=WireStats) == gauge

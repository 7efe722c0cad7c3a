import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metrics.statistics import PERCENTILES, Column, ColumnLimits, Stats, nearest_ranks
from support.scratch import SCRATCH

numbers = st.floats(min_value=-1e9, max_value=1e12, allow_nan=False, width=64)


def filled(values):
    column = Column(SCRATCH)
    column.extend(np.array(values, dtype=np.float64))
    return column


def check(stats: Stats, values):
    array = np.array(values)
    close = {"rel": 1e-9, "abs": 1e-9}
    for q in PERCENTILES:
        assert getattr(stats, f"p{q}") == pytest.approx(float(np.percentile(array, q)), **close)
    assert stats.avg == pytest.approx(float(array.mean()), rel=1e-9, abs=1e-6)
    assert stats.std == pytest.approx(float(array.std()), rel=1e-6, abs=1e-3)
    assert stats.sum == pytest.approx(math.fsum(values), rel=1e-9, abs=1e-3)
    assert stats.min == array.min()
    assert stats.max == array.max()
    assert stats.count == len(values)
    ordered = [stats.min, *(getattr(stats, f"p{q}") for q in PERCENTILES), stats.max]
    assert ordered == sorted(ordered)
    assert stats.min <= stats.avg <= stats.max


@given(st.lists(numbers, min_size=1, max_size=300))
def test_statistics_match_numpy(values):
    check(filled(values).statistics("ms"), values)


@settings(max_examples=30, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=300))
def test_column_in_a_file_gives_the_same_statistics(values):
    column = Column(SCRATCH, ColumnLimits(in_memory=7, chunk=16))
    for value in values:
        column.append(value)
    assert len(column) == len(values)
    check(column.statistics("ms"), values)


@settings(max_examples=30, deadline=None)
@given(st.lists(numbers | st.sampled_from([0.0, 1.0, 20.0]), min_size=1, max_size=300))
def test_percentiles_of_a_column_that_is_too_large_to_copy_are_exact(values):
    column = Column(SCRATCH, ColumnLimits(in_memory=7, chunk=64, counted=16, copied=0))
    for value in values:
        column.append(value)
    check(column.statistics("ms"), values)
    ranks = range(0, len(values), 7)
    assert column.at_ranks(ranks) == {rank: sorted(values)[rank] for rank in ranks}


def test_equal_values_have_zero_deviation(tmp_path):
    stats = filled([0.1] * 1000).statistics("ms")
    assert stats.avg == stats.p50 == stats.min == stats.max == 0.1
    assert stats.std == pytest.approx(0, abs=1e-15)


def test_failures_count_as_infinitely_slow(tmp_path):
    """Five successes and five failures: the p50 is the slowest success."""
    stats = filled([45.5, 40.2, 40.4, 43.4, 41.0]).with_failures("ms", 5)
    assert stats == Stats("ms", p1=40.2, p5=40.2, p10=40.4, p25=41.0, p50=45.5, min=40.2, count=10)


@given(st.integers(1, 10_000))
def test_nearest_ranks_match_numpy(count):
    ranks = nearest_ranks(count)
    for q in PERCENTILES:
        assert abs(ranks[f"p{q}"] - q / 100 * (count - 1)) <= 0.5
        assert ranks[f"p{q}"] == int(np.percentile(np.arange(count), q, method="nearest"))

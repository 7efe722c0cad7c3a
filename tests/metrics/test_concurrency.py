import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.concurrency import count_overlaps
from penstock.metrics.statistics import Column
from support.scratch import SCRATCH


def levels_of(spans, **limits):
    starts, ends = Column(SCRATCH), Column(SCRATCH)
    for start, end in spans:
        starts.append(start)
        ends.append(end)
    return count_overlaps(starts, ends, SCRATCH, **limits)


def concurrency(spans):
    return levels_of(spans).statistics("requests")


def test_levels_are_weighted_by_time():
    """One request for 10, two for 10, one for 10, none for 20, one for 50."""
    stats = concurrency([(0, 20), (10, 30), (50, 100)])
    assert stats.avg == pytest.approx(0.9)
    assert stats.std == pytest.approx(np.sqrt(0.1 * 1.1**2 + 0.7 * 0.1**2 + 0.2 * 0.9**2))
    assert (stats.min, stats.p50, stats.p90, stats.p99, stats.max) == (0, 1, 1, 2, 2)
    assert stats.count is stats.sum is stats.p1 is None


def test_slot_refilled_at_once_counts_as_one_request():
    assert concurrency([(0, 10), (10, 20), (20, 30)]).max == 1


def test_request_without_duration_is_ignored():
    assert concurrency([(0, 10), (5, 5)]).avg == 1
    assert concurrency([(5, 5)]) is None


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), min_size=1, max_size=40))
def test_result_equals_counting_every_nanosecond(spans):
    spans = [(start, start + length) for start, length in spans]
    first, last = min(s for s, _ in spans), max(e for _, e in spans)
    levels = [sum(s <= t < e for s, e in spans) for t in range(first, last)]
    stats = concurrency(spans)
    assert stats.avg == pytest.approx(np.mean(levels))
    assert stats.std == pytest.approx(np.std(levels), abs=1e-9)
    assert (stats.min, stats.max) == (min(levels), max(levels))
    assert stats.p50 == np.percentile(levels, 50, method="inverted_cdf")


@pytest.mark.parametrize("window", [None, (0, 500), (137, 138), (250, 2000)])
def test_events_in_a_file_give_the_same_result(window):
    spans = [(17 * n % 900, 17 * n % 900 + 1 + n % 70) for n in range(60)]
    whole = levels_of(spans)
    parts = levels_of(spans, in_memory=10, chunk=7)
    assert parts.statistics("requests", window) == whole.statistics("requests", window)
    for one, other in zip(parts.busy(), whole.busy(), strict=True):
        assert one.tolist() == other.tolist()

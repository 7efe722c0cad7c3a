"""Stalls: the longest gap, fluidity, the waiting of a reader, and gaps by position."""

import numpy as np
import pytest

from penstock.metrics.gap_profile import GapProfileBuilder
from penstock.metrics.groups.stalls import measure_reader
from penstock.metrics.metric import TokenCounts
from support.records import MS, make_record, measure, measured


def values(rate=None, **changes):
    record = make_record(**changes)
    counts = TokenCounts(output=sum(record.pieces))
    measures = measure(record, counts)
    if rate is not None:
        measure_reader(record, counts, measures, rate)
    return measures.values


def stream(*times_ms, pieces=None, **changes):
    return {"stamps": [t * MS for t in times_ms], "pieces": pieces or [1] * len(times_ms), **changes}


def test_longest_gap_is_that_of_exact_stamps():
    found = values(**stream(50, 60, 160, 170))
    assert (found["longest_gap"], found["inexact_gap_count"]) == (100, 0)
    found = values(**stream(50, 60, 160, 170, coalesced=[2], earliest=[70 * MS]))
    assert (found["longest_gap"], found["inexact_gap_count"]) == (10, 2)
    found = values(**stream(50, 60, coalesced=[1], earliest=[51 * MS]))
    assert "longest_gap" not in found
    assert found["inexact_gap_count"] == 1


def test_even_stream_that_is_faster_than_the_reader_meets_all_deadlines():
    found = values(rate=50, **stream(50, 60, 70, 80))
    assert (found["fluidity_index"], found["reader_wait_share"]) == (1, 0)


def test_early_tokens_make_up_for_a_stall():
    """At 100 tokens/s, nine tokens 1 ms apart leave 81 ms of slack, so a gap of 60 ms is not noticed."""
    assert values(rate=100, **stream(*range(50, 60), 119))["fluidity_index"] == 1


def test_stall_misses_a_deadline_for_each_interval_that_passes():
    """Due after 10 ms each. Tokens at 60 and 70 are met, the one at 110 misses 4 deadlines, the one at 120 is met again."""
    found = values(rate=100, **stream(50, 60, 70, 110, 120))
    assert found["fluidity_index"] == pytest.approx(3 / 7)
    assert found["reader_wait_share"] == pytest.approx(30 / 70)


def test_tokens_that_arrive_together_count_each():
    """Four tokens at once last the reader 40 ms."""
    found = values(rate=100, **stream(50, 60, 100, pieces=[1, 4, 1]))
    assert (found["fluidity_index"], found["reader_wait_share"]) == (1, 0)


def test_content_of_an_inexact_stamp_counts_with_the_next_one():
    found = values(rate=100, **stream(50, 75, 80, coalesced=[1], earliest=[55 * MS]))
    assert found["reader_wait_share"] == pytest.approx(20 / 30)


def test_reader_metrics_need_two_stamps():
    assert "fluidity_index" not in values(rate=100, **stream(50, pieces=[5]))


def test_gaps_are_grouped_by_position_and_inexact_ones_counted():
    builder = GapProfileBuilder()
    for _ in range(100):
        record = make_record(**stream(50, 60, 90, 95))
        builder.add(*measured([record], [TokenCounts(output=4)]))
    record = make_record(**stream(50, 60, 90, 95, coalesced=[2], earliest=[70 * MS]))
    builder.add(*measured([record], [TokenCounts(output=4)]))
    profile = builder.result()
    assert profile.inexact_gaps == 2
    assert [(each.first, each.last, each.count) for each in profile.positions] == [
        (1, 1, 101),
        (2, 2, 100),
        (3, 3, 100),
    ]
    assert [each.avg for each in profile.positions] == pytest.approx([10, 30, 5])
    assert [each.p50 for each in profile.positions] == pytest.approx([10, 30, 5], rel=0.011)


def test_positions_beyond_the_first_share_ranges():
    builder = GapProfileBuilder()
    record = make_record(stamps=(np.arange(1, 202) * 10 * MS).tolist(), pieces=[1] * 201)
    builder.add(*measured([record], [TokenCounts(output=201)]))
    profile = builder.result()
    assert sum(each.count for each in profile.positions) == 200
    assert len(profile.positions) < 30
    assert all(each.p99 == pytest.approx(10, rel=0.011) for each in profile.positions)

from __future__ import annotations

from penstock.wire.arrival_bounds import ArrivalBounds


def test_read_of_one_segment_is_exact():
    bounds = ArrivalBounds()
    bounds.sent(100)
    assert bounds.read(10, True, 200, 150, segments=1, received=10) is None
    assert bounds.read(10, True, 300, 250, segments=2, received=20) is None


def test_several_segments_arrived_after_the_previous_read():
    bounds = ArrivalBounds()
    bounds.sent(100)
    bounds.read(10, True, 200, 150, segments=1, received=10)
    assert bounds.read(20, True, 900, 150, segments=3, received=30) == 200


def test_a_mark_of_the_loop_is_a_later_bound():
    bounds = ArrivalBounds()
    bounds.sent(100)
    assert bounds.read(20, True, 900, 700, segments=2, received=20) == 700


def test_first_read_after_the_send_is_bounded_by_the_send():
    bounds = ArrivalBounds()
    bounds.read(10, True, 50, 0, segments=1, received=10)
    bounds.sent(100)
    assert bounds.read(20, True, 900, 0, segments=3, received=30) == 100


def test_data_that_a_full_buffer_left_behind_keeps_the_older_bound():
    bounds = ArrivalBounds()
    bounds.sent(100)
    assert bounds.read(10, False, 500, 0, segments=3, received=30) == 100
    assert bounds.read(20, True, 600, 0, segments=3, received=30) == 100


def test_segments_that_slip_in_behind_a_read_are_counted_for_the_next():
    """The totals are taken after the read: two more segments arrived in between and are not of this read."""
    bounds = ArrivalBounds()
    bounds.sent(100)
    assert bounds.read(10, True, 200, 0, segments=3, received=30) == 100
    assert bounds.read(20, True, 300, 0, segments=3, received=30) == 200


def test_one_coalesced_read_does_not_blur_the_next():
    bounds = ArrivalBounds()
    bounds.sent(100)
    bounds.read(20, True, 200, 0, segments=2, received=20)
    assert bounds.read(10, True, 300, 0, segments=3, received=30) is None

"""Phases that go on where an earlier process ended."""

from __future__ import annotations

import pytest

from penstock.schedule.arrivals import Constant, Recorded
from penstock.schedule.phase import Resumed
from penstock.schedule.random_arrivals import Poisson
from penstock.schedule.share import Share
from penstock.schedule.turn_timing import AtRecordedTimes
from support.schedules import MS, SECOND, Data, make_phase, simulate

RESUMED = Resumed(unfinished=(2, 5, 6), next_number=8, active_ns=4 * SECOND, arrived_ns=300 * MS)


def sent_numbers(workers: int, **fields: object) -> list[int]:
    """Return the numbers of the sessions that all workers of a resumed phase send, in ascending order."""
    phase = make_phase(**fields).continued(RESUMED, requests=5)
    return [number for number, _, _ in simulate(phase, workers, lambda _: 10)]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_unfinished_sessions_begin_again_and_new_ones_follow(workers: int) -> None:
    assert sent_numbers(workers, slots=8, requests=12) == [2, 5, 6, 8, 9, 10, 11]
    assert sent_numbers(workers, slots=8, conversations=11) == [2, 5, 6, 8, 9, 10]


def test_continued_phase_has_the_rest_of_the_duration() -> None:
    assert make_phase(slots=1, duration_s=10.0).continued(RESUMED, 5).duration_s == 6.0
    assert make_phase(slots=1, duration_s=3.0).continued(RESUMED, 5).duration_s == 0.0


@pytest.mark.parametrize("process", [Constant(20), Poisson(20)])
@pytest.mark.parametrize("workers", [1, 3])
def test_arrivals_go_on_where_they_were(process: Constant | Poisson, workers: int) -> None:
    phase = make_phase(arrivals=process).continued(RESUMED, 0)
    assert phase.arrivals is not None
    for worker in range(workers):
        share = Share(worker, workers)
        whole, rest = process.times(share, 3, Data()), phase.arrivals.times(share, 3, Data())
        remaining = [time - 300 * MS for time in (next(whole) for _ in range(20)) if time >= 300 * MS]
        assert [next(rest) for _ in remaining] == remaining


@pytest.mark.parametrize("workers", [1, 2])
def test_recorded_times_go_on_and_unfinished_conversations_are_due_at_once(workers: int) -> None:
    data = Data(size=10)
    data.recorded = {(number, 0): number * 50 * MS for number in range(10)}
    phase = make_phase(arrivals=Recorded(), turn_timing=AtRecordedTimes(), whole=True).continued(RESUMED, 5)
    sent = simulate(phase, workers, lambda _: 1, data)
    assert [(number, intended) for number, _, intended in sent] == [
        (2, 0),
        (5, 0),
        (6, 0),
        (8, 100 * MS),
        (9, 150 * MS),
    ]

"""Arrival times of requests."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from penstock.schedule.arrivals import Arrivals, Constant, Recorded, arrival_process
from penstock.schedule.random_arrivals import Poisson
from penstock.schedule.share import Share
from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS

SECOND = 1_000_000_000
NO_DATA: Any = None


def first(process: Arrivals, count: int, seed: int = 1, share: Share = Share()) -> list[int]:  # noqa: B008
    return [time for time in islice(process.times(share, seed, NO_DATA), count) if time is not None]


@pytest.mark.parametrize("rate", [0.1, 1, 3, 7.5, 1000, 33333.3])
def test_constant_arrivals_are_exact_to_the_nanosecond(rate):
    times = first(Constant(rate), 10_000)
    assert times[0] == 0
    assert all(abs(time - n * SECOND / rate) <= 0.5 for n, time in enumerate(times))


def test_rounding_errors_do_not_accumulate():
    assert first(Constant(3), 3_000_001)[-1] == 1_000_000 * SECOND


@pytest.mark.parametrize("rate", [5.0, 2000.0])
def test_poisson_arrivals_have_independent_exponential_gaps(rate):
    times = np.array(first(Poisson(rate), 20_000))
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
    assert first(Poisson(10), 100, 7) == first(Poisson(10), 100, 7)
    assert first(Poisson(10), 100, 7) != first(Poisson(10), 100, 8)


@pytest.mark.parametrize("pattern", ARRIVAL_PATTERNS)
def test_shares_of_any_number_of_workers_add_up_to_the_same_times(pattern):
    process = arrival_process(pattern, 1000.0)
    alone = first(process, 3000)
    for workers in range(2, 9):
        shares = [first(process, 3000 // workers + 1, share=Share(worker, workers)) for worker in range(workers)]
        together = [shares[number % workers][number // workers] for number in range(3000)]
        assert together == alone


def test_pattern_is_selected_by_name():
    assert arrival_process("constant", 4) == Constant(4)
    assert arrival_process("poisson", 4) == Poisson(4)


class Recording:
    """A dataset of conversations with recorded times, which may still grow."""

    def __init__(self, times: list[int], *, growing: bool = False) -> None:
        self.times = times
        self.growing = growing

    @property
    def size(self) -> int | None:
        return None if self.growing else len(self.times)

    def has(self, conversation: int) -> bool:
        return conversation < len(self.times)

    def recorded_ns(self, conversation: int, turn: int) -> int:
        assert turn == 0
        return self.times[conversation]


def test_recorded_arrivals_wait_for_the_index_and_end_with_it():
    data: Any = Recording([0, 70], growing=True)
    times = Recorded(0.5).times(Share(), 1, data)
    assert [next(times) for _ in range(4)] == [0, 35, None, None]
    data.times.append(90)
    assert next(times) == 45
    data.growing = False
    assert list(times) == []


def test_recorded_arrivals_of_several_servers_are_at_the_same_time():
    data: Any = Recording([0, 70, 90])
    assert list(Recorded(1.0, copies=2).times(Share(), 1, data)) == [0, 0, 70, 70, 90, 90]
    assert list(Recorded(1.0, copies=2).times(Share(1, 2), 1, data)) == [0, 70, 90]

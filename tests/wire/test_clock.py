"""The offset between the wall clock and the monotonic clock, and the detection of clock steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.wire import clock as clocks
from penstock.wire.clock import Clock

SECOND = 1_000_000_000


class FakeClocks:
    """Both clocks, advanced by the test. Each reading takes `cost` ns."""

    def __init__(self, monotonic: int, wall: int, cost: int = 40) -> None:
        self.monotonic = monotonic
        self.wall = wall
        self.cost = cost

    def pass_time(self, ns: int) -> None:
        self.monotonic += ns
        self.wall += ns

    def reader(self, which: str) -> Callable[[], int]:
        def read() -> int:
            self.pass_time(self.cost)
            return int(getattr(self, which))

        return read


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClocks:
    fake = FakeClocks(5 * SECOND, 1_700_000_000 * SECOND)
    monkeypatch.setattr(clocks, "monotonic_ns", fake.reader("monotonic"))
    monkeypatch.setattr(clocks, "time_ns", fake.reader("wall"))
    return fake


def test_offset_converts_wall_time_to_monotonic_time():
    clock = Clock()
    before = time.monotonic_ns()
    now = time.time_ns() - clock.offset
    after = time.monotonic_ns()
    assert before - 1_000_000 < now < after + 1_000_000


def test_offset_is_exact_if_both_clock_reads_take_equally_long(fake):
    assert Clock().offset == fake.wall - fake.monotonic


def test_narrowest_measurement_is_used(fake, monkeypatch):
    slow = iter([5_000_000, 5_000_000, 40] + [5_000_000] * 20)
    read_wall = fake.reader("wall")

    def sometimes_slow() -> int:
        now = read_wall()
        fake.pass_time(next(slow))  # the process was descheduled right after the reading
        return now

    monkeypatch.setattr(clocks, "time_ns", sometimes_slow)
    assert abs(clocks.measure_offset() - (fake.wall - fake.monotonic)) <= 40


def test_slewed_clock_is_followed_and_not_counted_as_a_step(fake):
    clock = Clock()
    for _ in range(100):
        fake.pass_time(50_000_000)
        fake.wall += 25_000  # 500 ppm, the most that NTP slews
        clock.refresh()
    assert clock.steps == 0
    assert clock.offset == fake.wall - fake.monotonic


@pytest.mark.parametrize("jump", [SECOND, -SECOND, 5_000_000, -5_000_000])
def test_set_clock_is_counted_once_and_followed(fake, jump):
    clock = Clock()
    fake.wall += jump
    for _ in range(5):
        fake.pass_time(50_000_000)
        clock.refresh()
    assert clock.steps == 1
    assert clock.offset == fake.wall - fake.monotonic

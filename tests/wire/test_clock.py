"""Two clocks: the offset between them, and the moment at which somebody sets one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.wire import clock as clocks
from penstock.wire.clock import Clock

SECOND = 1_000_000_000


class Hands:
    """Both clocks, moved by hand. Each look takes `cost` ns."""

    def __init__(self, monotonic: int, wall: int, cost: int = 40) -> None:
        self.monotonic = monotonic
        self.wall = wall
        self.cost = cost

    def pass_time(self, ns: int) -> None:
        self.monotonic += ns
        self.wall += ns

    def look(self, which: str) -> Callable[[], int]:
        def read() -> int:
            self.pass_time(self.cost)
            return int(getattr(self, which))

        return read


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands(5 * SECOND, 1_700_000_000 * SECOND)
    monkeypatch.setattr(clocks, "monotonic_ns", hands.look("monotonic"))
    monkeypatch.setattr(clocks, "time_ns", hands.look("wall"))
    return hands


def test_the_offset_moves_a_wall_time_onto_the_monotonic_axis():
    clock = Clock()
    before = time.monotonic_ns()
    now = time.time_ns() - clock.offset
    after = time.monotonic_ns()
    assert before - 1_000_000 < now < after + 1_000_000


def test_the_offset_is_exact_when_looking_costs_the_same_both_ways(hands):
    assert Clock().offset == hands.wall - hands.monotonic


def test_the_tightest_of_several_looks_counts(hands, monkeypatch):
    slow = iter([5_000_000, 5_000_000, 40] + [5_000_000] * 20)
    ordinary = hands.look("wall")

    def sometimes_slow() -> int:
        now = ordinary()
        hands.pass_time(next(slow))  # the process lost its core right after the look
        return now

    monkeypatch.setattr(clocks, "time_ns", sometimes_slow)
    assert abs(clocks.measure_offset() - (hands.wall - hands.monotonic)) <= 40


def test_a_clock_that_is_slewed_is_followed_and_not_counted_as_a_step(hands):
    clock = Clock()
    for _ in range(100):
        hands.pass_time(50_000_000)
        hands.wall += 25_000  # 500 ppm, the most that NTP slews
        clock.refresh()
    assert clock.steps == 0
    assert clock.offset == hands.wall - hands.monotonic


@pytest.mark.parametrize("jump", [SECOND, -SECOND, 5_000_000, -5_000_000])
def test_a_clock_that_is_set_is_noticed_once_and_followed(hands, jump):
    clock = Clock()
    hands.wall += jump
    for _ in range(5):
        hands.pass_time(50_000_000)
        clock.refresh()
    assert clock.steps == 1
    assert clock.offset == hands.wall - hands.monotonic

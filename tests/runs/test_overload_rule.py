"""When --stop-on-overload looks, and what it needs to end a phase."""

import numpy as np

from penstock.runs.overload_rule import Looks

SECOND = 1_000_000_000
EARLY = np.full(50, 0.1 * SECOND)


def ended_at(rate: float, completed: float, early_known_s: float = 0.0) -> float | None:
    """Return after how many seconds a phase ends in which a server completes so many requests per second; None for never."""
    looks = Looks()
    for tenths in range(600):
        seconds = tenths / 10
        early = EARLY if seconds >= early_known_s else None
        counts = round(rate * seconds), round(min(rate, completed) * max(0.0, seconds - 0.1))
        if looks.look(seconds * SECOND, *counts, early) is not None:
            return seconds
    return None


def test_rate_above_the_capacity_ends_at_the_second_look() -> None:
    """200 requests are due after 4 s, and the second look is after half as long again."""
    assert ended_at(50, 40) == 6.0


def test_rate_below_the_capacity_never_ends() -> None:
    assert ended_at(50, 51) is None


def test_nothing_ends_before_the_first_latencies_are_known() -> None:
    ended = ended_at(50, 40, early_known_s=10)
    assert ended is not None
    assert ended >= 10

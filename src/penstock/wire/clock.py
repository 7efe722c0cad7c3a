"""Conversion of wall-clock times to the monotonic clock.

Durations use the monotonic clock. Kernel receive stamps use the wall clock (CLOCK_REALTIME), so they are converted with
the measured offset between the two. On Linux, which is the only system with such stamps, NTP slews both clocks equally:
the offset changes only when the wall clock is set or the machine suspends. Such a step is detected and counted.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

_STEP_NS = 1_000_000
_MEASUREMENTS = 5


class Clock:
    def __init__(self) -> None:
        self.offset = measure_offset()
        """Wall clock minus monotonic clock, in ns."""
        self.steps = 0
        """How often the wall clock was set since this object was created."""

    def refresh(self) -> None:
        """Measure the offset again. Call this about every 50 ms."""
        offset = measure_offset()
        if abs(offset - self.offset) > _STEP_NS:
            self.steps += 1
        self.offset = offset


def measure_offset() -> int:
    """Read the wall clock between two monotonic readings, and use the narrowest of several attempts (about 50 ns)."""
    best_width, best = 1 << 62, 0
    for _ in range(_MEASUREMENTS):
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, wall - (before + after) // 2
    return best

"""Two clocks and the bridge between them.

Durations are monotonic. Kernel receive stamps are wall-clock (CLOCK_REALTIME), so they are moved onto the monotonic
axis by the measured difference of the two. On Linux, where such stamps are, NTP slews both clocks alike: the difference
changes only when the wall clock is set or the machine sleeps. It jumps then; a jump is noticed and counted.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns

__all__ = ["Clock"]

_STEP_NS = 1_000_000
_TRIES = 5


class Clock:
    __slots__ = ("offset", "steps")

    def __init__(self) -> None:
        self.offset = measure_offset()
        """Wall minus monotonic, ns."""
        self.steps = 0
        """How often the wall clock was set while we ran."""

    def refresh(self) -> None:
        """Call this every 50 ms or so."""
        offset = measure_offset()
        if abs(offset - self.offset) > _STEP_NS:
            self.steps += 1
        self.offset = offset


def measure_offset() -> int:
    """The tightest of a few sandwiches monotonic-wall-monotonic: good to about 50 ns."""
    best_width, best = 1 << 62, 0
    for _ in range(_TRIES):
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, wall - (before + after) // 2
    return best

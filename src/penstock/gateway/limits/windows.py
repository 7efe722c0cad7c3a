"""Sliding window arithmetic.

A window of W seconds has 32 ticks of width w. A ring of 32 counters holds what was admitted in the current tick and in
each of the 31 before it. During the current tick, the oldest counter drains linearly: at time e into the current tick

    used = sum of the ring - oldest * e/w
    admit n  when  used + n <= limit

Consequences:
- All ticks but the oldest count in full, so no span of 15/16 W contains more than the limit.
- Nothing counts for longer than W, so Retry-After never exceeds the window.
- `used` is piecewise linear while nothing is admitted, so the time at which n more fit is known exactly.

The common variant with two weighted counters (this window and the last) is the same with two ticks of width W. It treats a
burst at the end of a window as spread over the whole window, so nearly twice the limit can pass in a span of W.

All times are integer microseconds and all comparisons are between integers (both sides times w), so nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TICKS: Final = 32


def width_us(seconds: int) -> int:
    """Return the tick width of a window. It is exact, because a million is a multiple of 32."""
    return seconds * 1_000_000 // TICKS


def remaining(counts: Sequence[int], elapsed: int, width: int, limit: int) -> int:
    """Return how much fits now. `counts` is the ring, oldest tick first; `elapsed` is e above."""
    return max(0, ((limit - sum(counts)) * width + counts[0] * elapsed) // width)


def wait_us(counts: Sequence[int], elapsed: int, width: int, amount: int, limit: int) -> int:
    """Return the time until `amount` fits, if nothing else is admitted before.

    An amount above the limit never fits; then the result is the length of the window.
    """
    need = (sum(counts) + amount - limit) * width - counts[0] * elapsed
    if need <= 0:
        return 0
    tick_start = -elapsed
    for count in counts:
        drainable = count * (width + min(tick_start, 0))
        if need <= drainable:
            return max(tick_start, 0) + -(-need // count)
        need -= drainable
        tick_start += width
    return TICKS * width


def reset_us(counts: Sequence[int], elapsed: int, width: int) -> int:
    """Return the time until the whole limit is free, if nothing else is admitted before."""
    for age, count in enumerate(reversed(counts)):
        if count:
            return (TICKS - age) * width - elapsed
    return 0

"""The sliding window, as arithmetic on counters.

A window of W seconds is cut into 32 ticks of width w, and a ring of 32 counters holds what was admitted in the current
tick and in each of the 31 before it. While the current tick runs, the oldest one of the ring drains away evenly: at time
e into the current tick

    used = sum of the ring - oldest * e/w
    admit n  when  used + n <= limit

What that gives:
- all ticks but the oldest count in full, so no span of 15/16 W, wherever it begins, ever holds more than the limit.
- nothing counts for longer than W, so Retry-After is never more than the window.
- `used` falls in straight lines while nothing is admitted, so the moment at which n more will fit is known exactly.

The usual two counters (this window and the last, weighted) are the same with two ticks of W each. A burst at the end of
a window is then taken as spread over all of it and forgiven accordingly: nearly twice the limit passes in a span of W.

All times are whole microseconds and all comparisons are between integers (both sides times w), so no result depends on
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["TICKS", "remaining", "reset_us", "wait_us", "width_us"]

TICKS: Final = 32


def width_us(seconds: int) -> int:
    """Exact: a million is a multiple of 32."""
    return seconds * 1_000_000 // TICKS


def remaining(counts: Sequence[int], elapsed: int, width: int, limit: int) -> int:
    """How much fits now; `counts` is the ring beginning with the oldest tick, `elapsed` the e above."""
    return max(0, ((limit - sum(counts)) * width + counts[0] * elapsed) // width)


def wait_us(counts: Sequence[int], elapsed: int, width: int, amount: int, limit: int) -> int:
    """Until `amount` more fits, if nothing else is admitted before.

    An amount above the limit never fits: the answer is the window's length.
    """
    need = (sum(counts) + amount - limit) * width - counts[0] * elapsed
    if need <= 0:
        return 0
    begins = -elapsed
    for count in counts:
        left = count * (width + min(begins, 0))
        if need <= left:
            return max(begins, 0) + -(-need // count)
        need -= left
        begins += width
    return TICKS * width


def reset_us(counts: Sequence[int], elapsed: int, width: int) -> int:
    """Until the whole limit is free again, if nothing else is admitted before."""
    for age, count in enumerate(reversed(counts)):
        if count:
            return (TICKS - age) * width - elapsed
    return 0

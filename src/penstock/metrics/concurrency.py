"""Compute the number of requests in flight, weighted by time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Column, Stats, Values, weighted_statistics

__all__ = ["Levels", "count_levels", "effective_concurrency"]


class Levels(NamedTuple):
    """How many intervals overlap over time."""

    durations: Values
    """Nanoseconds with 0, 1, 2, … intervals, between the first start and the last end."""
    begins: NDArray[np.int64]
    """When the number rose from 0."""
    ends: NDArray[np.int64]
    """When it next fell to 0 again."""

    def statistics(self, unit: str, window_ns: float | None = None) -> Stats | None:
        """Return statistics weighted by time, or None if all intervals took no time. The number is 0 in the rest of the
        window."""
        durations = self.durations.copy()
        if not durations.any():
            return None
        if window_ns is not None:
            durations[0] += window_ns - durations.sum()
        return weighted_statistics(np.arange(len(durations), dtype=np.float64), durations, unit)


def effective_concurrency(starts: Column, ends: Column, unit: str) -> Stats | None:
    """Return time-weighted statistics of the concurrency, or None if all requests took no time."""
    return count_levels(starts, ends).statistics(unit)


def count_levels(starts: Column, ends: Column) -> Levels:
    """Count the overlapping intervals over time."""
    # An event is its time shifted left by one bit; the low bit is 1 for a start. One in-place sort then puts an end before a
    # start at the same time. The peak is about 40 bytes per request.
    events = np.empty(len(starts) + len(ends), dtype=np.int64)
    events[: len(starts)] = starts.values()
    events[len(starts) :] = ends.values()
    events *= 2
    events[: len(starts)] += 1
    events.sort()
    levels = ((events & 1) * 2 - 1).cumsum(dtype=np.int32)
    # An interval that starts and ends in the same nanosecond makes the level -1 there, for no time.
    np.maximum(levels, 0, out=levels)
    events >>= 1
    durations = np.bincount(levels[:-1], weights=np.diff(events), minlength=1)
    busy = levels > 0
    turns = np.flatnonzero(busy[1:] != busy[:-1]) + 1
    if len(busy) and busy[0]:
        turns = np.concatenate(((0,), turns))
    times = events[turns]
    # astype() for the type checker: NumPy's stubs do not know that weights make the result float.
    return Levels(durations.astype(np.float64, copy=False), times[::2], times[1::2])

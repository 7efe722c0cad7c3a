"""Compute the number of requests in flight, weighted by time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Column, Stats, weighted_statistics

__all__ = ["Levels", "Window", "count_levels"]

Window = tuple[int, int]
"""Begin and end in ns."""


class Levels(NamedTuple):
    """How many intervals overlap over time."""

    times: NDArray[np.int64]
    """The starts and ends of the intervals, in order of time."""
    counts: NDArray[np.int32]
    """The number of intervals after each of them."""

    def statistics(self, unit: str, window: Window | None = None) -> Stats | None:
        """Return statistics weighted by time over the window, by default from the first start to the last end. None if it is
        empty."""
        begin, end = window or (self.times[0], self.times[-1])
        first, last = np.searchsorted(self.times, begin, side="right"), np.searchsorted(self.times, end)
        counts = np.concatenate((self.counts[first - 1 : first] if first else (0,), self.counts[first:last]))
        edges = np.concatenate(((begin,), self.times[first:last], (end,)))
        durations = np.bincount(counts, weights=np.diff(edges)).astype(np.float64, copy=False)
        return weighted_statistics(np.arange(len(durations), dtype=np.float64), durations, unit)

    def busy(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when the number rose from 0, and when it next fell to 0 again."""
        busy = self.counts > 0
        turns = np.flatnonzero(np.diff(busy, prepend=False))
        times = self.times[turns]
        return times[::2], times[1::2]


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
    counts = ((events & 1) * 2 - 1).cumsum(dtype=np.int32)
    # An interval that starts and ends in the same nanosecond makes the number -1 there, for no time.
    np.maximum(counts, 0, out=counts)
    events >>= 1
    return Levels(events, counts)

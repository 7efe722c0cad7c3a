"""Compute the number of requests in flight, weighted by time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Column, Stats, weighted_statistics
from penstock.scratch import Scratch

_IN_MEMORY = 1 << 17
_CHUNK = 1 << 17

Window = tuple[int, int]
"""Begin and end in ns."""


class Overlaps:
    """How many intervals overlap over time. The events are read in chunks, so that a large file of them takes little memory."""

    def __init__(self, events: NDArray[np.int64], chunk: int = _CHUNK) -> None:
        """`events` are the starts and ends of the intervals in order: the time shifted left by one bit, plus 1 for a start.
        `chunk` is how many are read at a time."""
        self._events = events
        self._chunk = chunk

    def _chunks(self, first: int, last: int, count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the times of the events from `first` to `last`, and the number of intervals after each of them."""
        for begin in range(first, last, self._chunk):
            part = np.array(self._events[begin : min(begin + self._chunk, last)])
            counts = ((part & 1) * 2 - 1).cumsum()
            counts += count
            count = int(counts[-1])
            # An interval that starts and ends in the same nanosecond makes the number -1 there, for no time.
            yield part >> 1, np.maximum(counts, 0)

    def statistics(self, unit: str, window: Window | None = None) -> Stats | None:
        """Return statistics weighted by time over the window, by default from the first start to the last end. None if it is
        empty."""
        events = self._events
        begin, end = window or (int(events[0]) >> 1, int(events[-1]) >> 1)
        first = int(np.searchsorted(events, 2 * begin + 2))
        last = max(first, int(np.searchsorted(events, 2 * end)))
        before = self._count_before(first)
        durations = np.zeros(1)
        at = begin
        count = max(0, before)
        for times, counts in self._chunks(first, last, before):
            held = np.concatenate(((count,), counts[:-1]))
            edges = np.concatenate(((at,), times))
            durations = _added(durations, _bincount(held, np.diff(edges)))
            at, count = int(times[-1]), int(counts[-1])
        durations = _added(durations, _bincount(np.array((count,)), np.array((end - at,))))
        return weighted_statistics(np.arange(len(durations), dtype=np.float64), durations, unit)

    def _count_before(self, last: int) -> int:
        """Return the number of intervals after the first `last` events."""
        step = self._chunk
        starts = sum(int((self._events[at : min(at + step, last)] & 1).sum()) for at in range(0, last, step))
        return 2 * starts - last

    def busy(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when the number rose from 0, and when it next fell to 0 again."""
        turns: list[NDArray[np.int64]] = []
        before = False
        for times, counts in self._chunks(0, len(self._events), 0):
            busy = counts > 0
            turns.append(times[np.flatnonzero(np.diff(busy, prepend=before))])
            before = bool(busy[-1])
        every = np.concatenate(turns) if turns else np.empty(0, dtype=np.int64)
        return every[::2], every[1::2]


def _bincount(numbers: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.bincount(numbers, weights=weights).astype(np.float64, copy=False)


def _added(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add arrays of different lengths, aligned at their first elements."""
    if len(a) < len(b):
        a, b = b, a
    a = a.copy()
    a[: len(b)] += b
    return a


def count_overlaps(
    starts: Column, ends: Column, scratch: Scratch, in_memory: int = _IN_MEMORY, chunk: int = _CHUNK
) -> Overlaps:
    """Count the overlapping intervals over time. If there are more events than `in_memory`, they go to a file, whose pages the
    kernel can evict."""
    total = len(starts) + len(ends)
    memory = scratch.allocate(8 * total) if total > in_memory else bytearray(8 * total)
    events = np.frombuffer(memory, dtype=np.int64)
    at = 0
    for column, bit in ((starts, 1), (ends, 0)):
        for values in column.chunks():
            events[at : at + len(values)] = values.astype(np.int64) * 2 + bit
            at += len(values)
    # In order of time, and an end before a start at the same time.
    events.sort()
    return Overlaps(events, chunk)

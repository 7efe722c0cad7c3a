"""Means of step functions over time, in bins of equal width.

A step function is given by its changes, in any order. Each bin keeps the sum of its changes and the sum of their moments, from
which the exact integral over the bin follows. Memory depends on the length of the run, not on the number of changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.statistics import Values

WIDTH_NS = 10_000_000
_MOST_BINS = 1 << 19
"""Beyond these, the width doubles: at 10 ms they cover 87 minutes and take 8 MB for each function."""


class StepGrid:
    def __init__(self, functions: int, width_ns: int = WIDTH_NS, most_bins: int = _MOST_BINS) -> None:
        self.width = width_ns
        self._most_bins = most_bins
        self._first = 0
        """Number of the first bin that is stored; bin 0 begins at time 0."""
        self._sums = np.zeros((functions, 0))
        self._moments = np.zeros((functions, 0))
        """The sums of change * (time since the start of the bin / width)."""

    def add(self, times: Values | NDArray[np.int64], changes: Mapping[int, Values]) -> None:
        """Add changes at times (ns) to functions, by the number of the function."""
        if not len(times):
            return
        low, high = self._reserve(times.min(), times.max())
        offsets = (times - low * self.width) / self.width
        bins = offsets.astype(np.intp)
        offsets -= bins
        stored = slice(low - self._first, high - self._first)
        for function, change in changes.items():
            self._sums[function, stored] += np.bincount(bins, change, high - low)
            self._moments[function, stored] += np.bincount(bins, change * offsets, high - low)

    def merge(self, other: StepGrid) -> None:
        """Add the changes of another grid with the same functions, which may become coarser."""
        if not other._sums.size:
            return
        while True:
            while other.width < self.width:
                other._merge_pairs()
            while self.width < other.width:
                self._merge_pairs()
            first, end = min(self._first, other._first), max(self._end, other._end)
            if not self._sums.size or end - first <= self._most_bins:
                break
            self._merge_pairs()
        self._extend(other._first, other._end)
        place = slice(other._first - self._first, other._end - self._first)
        self._sums[:, place] += other._sums
        self._moments[:, place] += other._moments

    def integrals(self, function: int, first: int, last: int) -> Values:
        """Return the integral over each of the bins `first` to `last` (exclusive), in units of the function * ns."""
        self._extend(first, last)
        levels = np.cumsum(self._sums[function])
        integrals: Values = (levels - self._moments[function]) * self.width
        return integrals[first - self._first : last - self._first]

    def rates(self, function: int, edges: Values) -> Values | None:
        """Return by how much the function grows per second between each two of the edges (ns), which contain all changes; None
        if there are none. Within a bin it is taken to grow evenly."""
        if not self._sums.size:
            return None
        own = np.clip(np.arange(self._first, self._end + 1, dtype=np.float64) * self.width, edges[0], edges[-1])
        levels = np.concatenate(((0.0,), np.cumsum(self._sums[function])))
        rates: Values = np.diff(np.interp(edges, own, levels)) / np.diff(edges) * 1e9
        return rates

    def _reserve(self, earliest: float, latest: float) -> tuple[int, int]:
        """Return the range of bins for these times, and make room for it."""
        while True:
            # One more at the end, for a time that is rounded up to the edge of a bin.
            low, high = math.floor(earliest / self.width), math.floor(latest / self.width) + 2
            if not self._sums.size or max(high, self._end) - min(low, self._first) <= self._most_bins:
                self._extend(low, high)
                return low, high
            self._merge_pairs()

    @property
    def _end(self) -> int:
        return self._first + self._sums.shape[1]

    def _extend(self, low: int, high: int) -> None:
        """Store the bins `low` to `high` (exclusive). Room after them doubles, because most changes come in order of time."""
        if not self._sums.size:
            self._first = low
        before, size = max(self._first - low, 0), self._sums.shape[1]
        after = 0 if high <= self._end else max(high - self._end, min(size, self._most_bins - size - before))
        if before or after:
            more = ((0, 0), (before, after))
            self._sums, self._moments = np.pad(self._sums, more), np.pad(self._moments, more)
            self._first -= before

    def _merge_pairs(self) -> None:
        self._extend(self._first - self._first % 2, self._end)
        self._extend(self._first, self._end + self._end % 2)
        self._moments = (self._moments[:, ::2] + self._moments[:, 1::2] + self._sums[:, 1::2]) / 2
        self._sums = self._sums[:, ::2] + self._sums[:, 1::2]
        self._first //= 2
        self.width *= 2

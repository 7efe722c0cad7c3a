"""Statistics of columns of any size, in bounded memory.

A column keeps up to 4,096 values in memory and more than that in a scratch file. Percentiles are exact. Those of a small
column come from a copy of it; those of more than four million values are found bit by bit, in passes over the file: 100
million gaps use disk, not memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.scratch import Scratch, Spool

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_SIGN = 1 << 63

Values = NDArray[np.float64]


class Stats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of a metric, in AIPerf's order. None means that the metric has no such statistic."""

    unit: str
    avg: float | None = None
    p1: float | None = None
    p5: float | None = None
    p10: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    count: int | None = None
    sum: float | None = None

    @property
    def scalar(self) -> bool:
        """True if the metric has a single value (`avg`)."""
        return self.min is None and self.count is None


class ColumnLimits(NamedTuple):
    """Numbers of values."""

    in_memory: int = 4_096
    """Values of a column before it goes to a file. A report has about a hundred columns."""
    chunk: int = 1 << 20
    """Values that are read at a time."""
    counted: int = 1 << 18
    """Values whose digits are counted at a time."""
    copied: int = 1 << 22
    """Values of a column that are copied to find its percentiles, 32 MB."""


_LIMITS = ColumnLimits()


class Column:
    """A column of numbers that is first written and then read."""

    def __init__(self, scratch: Scratch, limits: ColumnLimits = _LIMITS) -> None:
        """Values that exceed the memory limit go to the scratch file."""
        self.limits = limits
        self._spool = Spool(scratch)
        self._buffer = array("d")

    def __len__(self) -> int:
        return self._spool.size // 8 + len(self._buffer)

    def append(self, value: float) -> None:
        buffer = self._buffer
        buffer.append(value)
        if len(buffer) >= self.limits.in_memory:
            self._spill()

    def extend(self, values: Values) -> None:
        buffer = self._buffer
        buffer.frombytes(values.tobytes())
        if len(buffer) >= self.limits.in_memory:
            self._spill()

    def _spill(self) -> None:
        self._spool.write(memoryview(self._buffer).cast("B"))
        self._buffer = array("d")

    def merge(self, other: Column) -> None:
        """Take over the values of another column. Columns that are merged in the same way keep the same order."""
        if other._spool.size:
            self._spill()
            self._spool.merge(other._spool)
        self._buffer += other._buffer
        if len(self._buffer) >= self.limits.in_memory:
            self._spill()

    def values(self) -> Values:
        """Return all values; the caller may reorder them. Add nothing after this call."""
        if not self._spool.size:
            return np.frombuffer(self._buffer, dtype=np.float64)
        self._spill()
        return self._spool.as_array(np.float64)

    def chunks(self) -> Iterator[Values]:
        """Yield the values in parts, which are read and not mapped: the pages of a mapped file count as memory."""
        for chunk in self._spool.chunks(8 * self.limits.chunk):
            yield np.frombuffer(chunk)
        if self._buffer or not self._spool.size:
            yield np.frombuffer(self._buffer, dtype=np.float64)

    def copy(self) -> Values:
        values = np.empty(len(self))
        at = 0
        for chunk in self.chunks():
            values[at : at + len(chunk)] = chunk
            at += len(chunk)
        return values

    def at_ranks(self, ranks: Sequence[int]) -> dict[int, float]:
        """Return the values at these indexes in sorted order."""
        distinct = sorted(set(ranks))
        if len(self) > self.limits.copied:
            return _search_ranks(self, distinct)
        values = self.copy()
        values.partition(distinct)
        return {rank: float(values[rank]) for rank in distinct}

    def statistics(self, unit: str) -> Stats:
        """Return all statistics. Percentiles interpolate linearly at q/100 * (n - 1); `std` is the population's."""
        count = len(self)
        total = math.fsum(float(chunk.sum()) for chunk in self.chunks())
        mean = total / count
        squares = math.fsum(float(np.square(chunk - mean).sum()) for chunk in self.chunks())
        percentiles = _percentiles(self)
        low, high = percentiles.pop("min"), percentiles.pop("max")
        # Rounding can put the mean of equal values an ulp outside their range.
        avg = min(max(mean, low), high)
        deviation = math.sqrt(squares / count)
        return Stats(unit=unit, avg=avg, min=low, max=high, std=deviation, count=count, sum=total, **percentiles)

    def with_failures(self, unit: str, failures: int) -> Stats:
        """Count each failure as an infinite value. Percentiles by nearest rank; omit infinite ones."""
        ranks = nearest_ranks(len(self) + failures)
        finite = {name: rank for name, rank in ranks.items() if rank < len(self)}
        by_rank = self.at_ranks([0, *finite.values()])
        percentiles = {name: by_rank[rank] for name, rank in finite.items()}
        return Stats(unit=unit, min=by_rank[0], count=len(self) + failures, **percentiles)


def nearest_ranks(count: int) -> dict[str, int]:
    """Return the index in sorted order that is nearest to each percentile. Halves round to even."""
    return {f"p{q}": round(q / 100 * (count - 1)) for q in PERCENTILES}


def weighted_statistics(values: Values, weights: Values, unit: str) -> Stats | None:
    """Return the statistics of values that hold for some time each, or None if all weights are 0.

    A percentile is the lowest value that was not exceeded for that share of the time.
    """
    occurring = weights > 0
    values, weights = values[occurring], weights[occurring]
    if not len(values):
        return None
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    cumulative = np.cumsum(weights)
    total = float(cumulative[-1])
    mean = float((values * weights).sum()) / total
    deviation = math.sqrt(float((np.square(values - mean) * weights).sum()) / total)
    ranks = np.searchsorted(cumulative, np.array((0.5, 0.9, 0.95, 0.99)) * total)
    p50, p90, p95, p99 = values[ranks].tolist()
    low, high = float(values[0]), float(values[-1])
    avg = min(max(mean, low), high)
    return Stats(unit=unit, avg=avg, p50=p50, p90=p90, p95=p95, p99=p99, min=low, max=high, std=deviation)


def _percentiles(column: Column) -> dict[str, float]:
    last = len(column) - 1
    positions = {f"p{q}": q / 100 * last for q in PERCENTILES}
    floors = [math.floor(position) for position in positions.values()]
    by_rank = column.at_ranks([0, last, *floors, *(min(i + 1, last) for i in floors)])
    percentiles = {"min": by_rank[0], "max": by_rank[last]}
    for name, position in positions.items():
        rank = math.floor(position)
        low, high = by_rank[rank], by_rank[min(rank + 1, last)]
        share = position - rank
        # Interpolate from the nearer end: the result stays within [low, high] and grows with the percentile.
        percentiles[name] = low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
    return percentiles


class _Target(NamedTuple):
    rank: int
    prefix: int
    """The first bits of the key of the value at this rank."""
    left: int
    """Its rank among the values with this prefix."""


def _search_ranks(column: Column, ranks: Sequence[int]) -> dict[int, float]:
    """Return the values at these indexes in sorted order, 16 bits of them in each of four passes over the column."""
    targets = [_Target(rank, 0, rank) for rank in ranks]
    counted = column.limits.counted
    for shift in (48, 32, 16, 0):
        prefixes = np.unique(np.array([target.prefix for target in targets], np.uint64))
        counts = np.zeros(len(prefixes) << 16, np.int64)
        for chunk in column.chunks():
            for first in range(0, len(chunk), counted):
                counts += _count_digits(_sortable(chunk[first : first + counted]), shift, prefixes)
        cumulative = {
            int(prefix): np.cumsum(row) for prefix, row in zip(prefixes, counts.reshape(-1, 1 << 16), strict=True)
        }
        targets = [_with_digit(target, cumulative[target.prefix]) for target in targets]
    keys = np.array([target.prefix for target in targets], np.uint64)
    bits = np.where(keys >> np.uint64(63), keys ^ np.uint64(_SIGN), ~keys)
    return dict(zip(ranks, bits.view(np.float64).tolist(), strict=True))


def _sortable(values: Values) -> NDArray[np.uint64]:
    """Return integers in the order of the numbers: their bits, inverted if negative, and otherwise with the first bit set."""
    bits = values.view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(_SIGN))


def _count_digits(keys: NDArray[np.uint64], shift: int, prefixes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the 16 bits from `shift` on of the keys with each of the prefixes before them."""
    if shift == 48:
        return np.bincount((keys >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
    before = keys >> np.uint64(shift + 16)
    place = np.minimum(np.searchsorted(prefixes, before), len(prefixes) - 1)
    chosen = prefixes[place] == before
    digits = (keys[chosen] >> np.uint64(shift)) & np.uint64(0xFFFF)
    return np.bincount((place[chosen] << 16) + digits.astype(np.int64), minlength=len(prefixes) << 16)


def _with_digit(target: _Target, cumulative: NDArray[np.int64]) -> _Target:
    digit = int(np.searchsorted(cumulative, target.left, side="right"))
    below = int(cumulative[digit - 1]) if digit else 0
    return _Target(target.rank, target.prefix << 16 | digit, target.left - below)

"""Statistics of columns of any size, in bounded memory.

A column keeps up to 4,096 values in memory and more than that in a file. Order statistics come from an in-place partition
of the memory-mapped file, whose pages the kernel can evict: 100 million gaps use disk, not memory. (Truncating a mapped file
would kill the process; these files are in a private temporary folder.)
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["PERCENTILES", "Column", "Stats", "Values", "nearest_ranks", "weighted_statistics"]

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_IN_MEMORY = 4_096
"""Values of a column before it goes to a file. A report has about a hundred columns."""
_CHUNK = 1 << 20

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


class Column:
    """A column of numbers that is first written and then read."""

    __slots__ = ("_buffer", "_path", "_spilled")

    def __init__(self, path: str) -> None:
        """`path` is the file for values that exceed the memory limit."""
        self._path = path
        self._buffer = array("d")
        self._spilled = 0

    @property
    def path(self) -> str:
        """The file for values that exceed the memory limit."""
        return self._path

    def __len__(self) -> int:
        return self._spilled + len(self._buffer)

    def append(self, value: float) -> None:
        buffer = self._buffer
        buffer.append(value)
        if len(buffer) >= _IN_MEMORY:
            self._spill()

    def extend(self, values: Values) -> None:
        buffer = self._buffer
        buffer.frombytes(values.tobytes())
        if len(buffer) >= _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        with open(self._path, "ab") as f:
            self._buffer.tofile(f)
        self._spilled += len(self._buffer)
        self._buffer = array("d")

    def values(self) -> Values:
        """Return all values; the caller may reorder them. Add nothing after this call."""
        if not self._spilled:
            return np.frombuffer(self._buffer, dtype=np.float64)
        if self._buffer:
            self._spill()
        mapped: Values = np.memmap(self._path, dtype=np.float64, mode="r+")
        return mapped

    def statistics(self, unit: str) -> Stats:
        """Return all statistics. Percentiles interpolate linearly at q/100 * (n - 1); `std` is the population's."""
        values = self.values()
        count = len(values)
        total = _total(values)
        mean = total / count
        percentiles = _percentiles(values)
        low, high = percentiles.pop("min"), percentiles.pop("max")
        # Rounding can put the mean of equal values an ulp outside their range.
        avg = min(max(mean, low), high)
        return Stats(
            unit=unit, avg=avg, min=low, max=high, std=_deviation(values, mean), count=count, sum=total, **percentiles
        )

    def with_failures(self, unit: str, failures: int) -> Stats:
        """Count each failure as an infinite value. Percentiles by nearest rank; omit infinite ones."""
        ranks = nearest_ranks(len(self) + failures)
        finite = {name: rank for name, rank in ranks.items() if rank < len(self)}
        by_rank = _values_at_ranks(self.values(), [0, *finite.values()])
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


def _percentiles(values: Values) -> dict[str, float]:
    last = len(values) - 1
    positions = {f"p{q}": q / 100 * last for q in PERCENTILES}
    floors = [math.floor(position) for position in positions.values()]
    by_rank = _values_at_ranks(values, [0, last, *floors, *(min(i + 1, last) for i in floors)])
    percentiles = {"min": by_rank[0], "max": by_rank[last]}
    for name, position in positions.items():
        rank = math.floor(position)
        low, high = by_rank[rank], by_rank[min(rank + 1, last)]
        share = position - rank
        # Interpolate from the nearer end: the result stays within [low, high] and grows with the percentile.
        percentiles[name] = low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
    return percentiles


def _values_at_ranks(values: Values, ranks: Sequence[int]) -> dict[int, float]:
    distinct = sorted(set(ranks))
    values.partition(distinct)
    return {rank: float(values[rank]) for rank in distinct}


def _chunks(values: Values) -> Iterable[Values]:
    for first in range(0, len(values), _CHUNK):
        yield values[first : first + _CHUNK]


def _total(values: Values) -> float:
    return math.fsum(float(chunk.sum()) for chunk in _chunks(values))


def _deviation(values: Values, mean: float) -> float:
    squares = math.fsum(float(np.square(chunk - mean).sum()) for chunk in _chunks(values))
    return math.sqrt(squares / len(values))

"""Statistics of columns of any size, in little memory.

A column keeps its values in memory up to 65,536 of them and in a file beyond that. Order statistics come from an
in-place partition, on the mapped file when there is one: those pages belong to the file, so that the hundred million
gaps of a large run cost disk, not memory. (A mapped file that somebody truncates kills the process; these are ours
alone, in a folder that nobody else knows.)
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["PERCENTILES", "Column", "Columns", "Stats", "Values", "nearest_ranks"]

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_IN_MEMORY = 65_536
_CHUNK = 1 << 20
_LAYOUTS = 32

Values = NDArray[np.float64]


class Stats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The statistics of a metric, in the order in which AIPerf writes them; None means that there is no such figure."""

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
        """It has nothing but its one value."""
        return self.min is None and self.count is None


class Column:
    """A column of numbers that is written first and read afterwards."""

    __slots__ = ("_buffer", "_path", "_spilled")

    def __init__(self, path: str) -> None:
        """`path` is where the values go when they become many."""
        self._path = path
        self._buffer = array("d")
        self._spilled = 0

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
        """All values, free to be reordered. Nothing may be added afterwards."""
        if not self._spilled:
            return np.frombuffer(self._buffer, dtype=np.float64)
        if self._buffer:
            self._spill()
        mapped: Values = np.memmap(self._path, dtype=np.float64, mode="r+")
        return mapped

    def statistics(self, unit: str) -> Stats:
        """Percentiles interpolate linearly at q/100 * (n - 1); the deviation is the population's."""
        values = self.values()
        count = len(values)
        total = _total(values)
        mean = total / count
        found = _percentiles(values)
        low, high = found.pop("min"), found.pop("max")
        # Rounding can put the mean of equal values an ulp outside their range.
        avg = min(max(mean, low), high)
        return Stats(
            unit=unit, avg=avg, min=low, max=high, std=_deviation(values, mean), count=count, sum=total, **found
        )

    def with_failures(self, unit: str, failures: int) -> Stats:
        """As if each failure were an infinite value: nearest rank, and what is infinite is left out."""
        ranks = nearest_ranks(len(self) + failures)
        finite = {name: rank for name, rank in ranks.items() if rank < len(self)}
        at = _at_ranks(self.values(), [0, *finite.values()])
        figures = {name: at[rank] for name, rank in finite.items()}
        return Stats(unit=unit, min=at[0], count=len(self) + failures, **figures)


class Columns:
    """Columns by name, filled row by row. Rows with the same names wait side by side and are split some thousands at a
    time: 3 µs for a row of 37, where appending to each column took 12."""

    def __init__(self, prefix: str) -> None:
        """`prefix` is how the paths of large columns begin."""
        self._prefix = prefix
        self._rows: dict[tuple[str, ...], array[float]] = {}
        self._columns: dict[str, Column] = {}

    def add(self, row: dict[str, float]) -> None:
        names = tuple(row)
        rows = self._rows.get(names)
        if rows is None:
            if len(self._rows) >= _LAYOUTS:
                self._split_all()
            rows = self._rows[names] = array("d")
        rows.extend(row.values())
        if len(rows) >= _IN_MEMORY:
            self._split(names)

    def column(self, name: str) -> Column:
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = Column(f"{self._prefix}-{name}.f64")
        return found

    def all(self) -> dict[str, Column]:
        self._split_all()
        return self._columns

    def _split_all(self) -> None:
        for names in list(self._rows):
            self._split(names)

    def _split(self, names: tuple[str, ...]) -> None:
        rows = np.frombuffer(self._rows.pop(names), dtype=np.float64).reshape(-1, len(names))
        for i, name in enumerate(names):
            self.column(name).extend(rows[:, i])


def nearest_ranks(count: int) -> dict[str, int]:
    """The index, in sorted order, that is nearest to each percentile; halves go to the even one."""
    return {f"p{q}": round(q / 100 * (count - 1)) for q in PERCENTILES}


def _percentiles(values: Values) -> dict[str, float]:
    last = len(values) - 1
    places = {f"p{q}": q / 100 * last for q in PERCENTILES}
    floors = [math.floor(place) for place in places.values()]
    at = _at_ranks(values, [0, last, *floors, *(min(i + 1, last) for i in floors)])
    found = {"min": at[0], "max": at[last]}
    for name, place in places.items():
        below = math.floor(place)
        low, high = at[below], at[min(below + 1, last)]
        share = place - below
        # From the nearer end, so that the result never leaves [low, high] and grows with the percentile.
        found[name] = low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
    return found


def _at_ranks(values: Values, ranks: Sequence[int]) -> dict[int, float]:
    wanted = sorted(set(ranks))
    values.partition(wanted)
    return {rank: float(values[rank]) for rank in wanted}


def _chunks(values: Values) -> Iterable[Values]:
    for first in range(0, len(values), _CHUNK):
        yield values[first : first + _CHUNK]


def _total(values: Values) -> float:
    return math.fsum(float(chunk.sum()) for chunk in _chunks(values))


def _deviation(values: Values, mean: float) -> float:
    squares = math.fsum(float(np.square(chunk - mean).sum()) for chunk in _chunks(values))
    return math.sqrt(squares / len(values))

"""How far the client itself can have moved each headline figure.

A stamp that covers several segments is the newest one's, so content that shares it may have arrived earlier: at the earliest
when the socket was last known to be empty (`Record.earliest`). Each headline metric of a request therefore has a lower and an
upper bound. Means and percentiles grow with every value in them, so the statistics of the lower bounds and of the upper
bounds enclose the true figure.

A request counts as sent when its first byte is about to be handed to the kernel. A client that loses its core right then
sends later, so the time until the kernel has taken the request is a second uncertainty (below 0.1 ms it is ignored).

`effective_latency` also depends on the client's lateness: a perfect client would have sent the request when it had a slot.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.metrics.reply_values import choice_count
from penstock.metrics.statistics import Column, Values
from penstock.records.record import Record

__all__ = ["HEADLINE", "STATISTICS", "Bounds", "FigureBounds", "RequestBounds", "bounds_of", "figure_bounds"]

HEADLINE = (
    "time_to_first_token",
    "time_to_second_token",
    "time_to_first_output_token",
    "inter_token_latency",
    "time_per_output_token",
    "request_latency",
    "effective_latency",
)
_ONE_WRITE_BYTES = 64_000
"""The kernel takes a body of this size with one write."""
_IGNORED_NS = 100_000
_CHUNK = 1 << 17
STATISTICS = ("avg", "p50", "p90", "p99")


class Bounds(NamedTuple):
    low: float
    high: float


class FigureBounds(NamedTuple):
    """A reported figure and the interval in which its true value lies."""

    value: float
    low: float
    high: float

    @property
    def shift(self) -> float:
        """How far the true value can be from the reported one."""
        return max(self.high - self.value, self.value - self.low)


def bounds_of(record: Record, values: dict[str, float]) -> dict[str, Bounds]:
    """Return the bounds in ms of the headline metrics that are not exactly known, also of those that `values` lacks.

    `values` are the metrics of the request. A request whose content shares one stamp has no inter-token latency; it is
    between 0 and what the time since the socket was empty allows.
    """
    found: dict[str, Bounds] = {}
    late = max(0, record.start - record.issued - record.connect_ns) / 1e6
    sending = _sending_ms(record)
    stamps = record.stamps if record.streamed else []
    if not stamps or not (record.earliest or sending):
        _add(found, "request_latency", values["request_latency"] - sending, values["request_latency"])
        _add(found, "effective_latency", values["effective_latency"] - late - sending, values["effective_latency"])
        return found
    earliest = stamps.copy()
    for index, time in zip(record.coalesced, record.earliest, strict=True):
        earliest[index] = time
    first, last = stamps[0] / 1e6, stamps[-1] / 1e6
    first_low, last_low = earliest[0] / 1e6, earliest[-1] / 1e6
    _add(found, "time_to_first_token", first_low - sending, first)
    if record.pieces[0] > 1:
        _add(found, "time_to_second_token", 0.0, first - first_low)
    elif len(stamps) > 1:
        _add(found, "time_to_second_token", max(0.0, earliest[1] / 1e6 - first), stamps[1] / 1e6 - first_low)
    if record.first_output is not None:
        index = record.first_output
        _add(found, "time_to_first_output_token", earliest[index] / 1e6 - sending, stamps[index] / 1e6)
    _add(found, "request_latency", last_low - sending, last)
    latency = values["effective_latency"]
    _add(found, "effective_latency", latency - late - sending - (last - last_low), latency)
    length = values.get("output_sequence_length")
    if length is not None:
        decode = Bounds(max(0.0, last_low - first), last - first_low)
        _add_decode(found, record, values, length, decode)
    return found


def _sending_ms(record: Record) -> float:
    """Return how long it may have taken until the kernel had the request's first bytes; 0 if that hardly matters.

    A large body takes several writes, of which only the first one counts, and its time is not known. After a redirect, `sent`
    belongs to the second request.
    """
    if record.sent is None or record.redirects or record.bytes_sent > _ONE_WRITE_BYTES:
        return 0.0
    sending = record.sent - record.start
    return sending / 1e6 if sending > _IGNORED_NS else 0.0


def _add(found: dict[str, Bounds], tag: str, low: float, high: float) -> None:
    if low < high:
        found[tag] = Bounds(max(0.0, low), high)


def _add_decode(
    found: dict[str, Bounds], record: Record, values: dict[str, float], length: float, decode: Bounds
) -> None:
    """Add the metrics that divide the decode time by a number of tokens.

    The tokens of the first stamp may be left out of that number. If the stamp covers several segments, they may have arrived
    one by one. The divisor is therefore between the one that was used (one token when there was no rest) and all but one.
    """
    gaps = length / choice_count(record) - 1
    if gaps <= 0 or decode.low >= decode.high:
        return
    reported = (record.stamps[-1] - record.stamps[0]) / 1e6
    for tag, without_value in (("inter_token_latency", gaps), ("time_per_output_token", 1.0)):
        used = reported / values[tag] if values.get(tag) else without_value
        most = gaps if record.coalesced[:1] == [0] else used
        found[tag] = Bounds(decode.low / max(most, used), decode.high / min(most, used))


class RequestBounds:
    """The bounds of all requests of a phase: three numbers for each value that is not exactly known."""

    def __init__(self, prefix: str) -> None:
        """Large columns go to files whose names start with `prefix`."""
        self._columns = {tag: _BoundsColumns(f"{prefix}-{tag}-bounds") for tag in HEADLINE}

    def add(self, record: Record, values: dict[str, float]) -> None:
        for tag, bounds in bounds_of(record, values).items():
            self._columns[tag].add(values.get(tag), bounds)

    def tags(self) -> Iterator[str]:
        """Yield the metrics with at least one value that is not exactly known."""
        return (tag for tag, columns in self._columns.items() if len(columns))

    def figures(self, tag: str, values: Values) -> dict[str, FigureBounds]:
        """Return the bounds of the statistics of a metric with these values, which are sorted in place."""
        columns = self._columns[tag]
        sides = [(columns.bounds[side].values(), columns.extra[side].values()) for side in (0, 1)]
        return _figures(values, columns.uncertain.values(), sides)


class _BoundsColumns:
    """The uncertain values of one metric and their bounds, and the bounds of requests without a value."""

    def __init__(self, prefix: str) -> None:
        self.uncertain = Column(f"{prefix}-value.f64")
        self.bounds = Column(f"{prefix}-low.f64"), Column(f"{prefix}-high.f64")
        self.extra = Column(f"{prefix}-extra-low.f64"), Column(f"{prefix}-extra-high.f64")

    def __len__(self) -> int:
        return len(self.uncertain) + len(self.extra[0])

    def add(self, value: float | None, bounds: Bounds) -> None:
        low, high = self.extra if value is None else self.bounds
        if value is not None:
            self.uncertain.append(value)
        low.append(bounds.low)
        high.append(bounds.high)


def figure_bounds(values: Values, uncertain: Values, bounds: Values, extra: Values) -> dict[str, FigureBounds]:
    """Return the bounds of each statistic of `values`.

    `uncertain` are those of the values that are not exactly known, with a row of `bounds` each. The rows of `extra` belong
    to requests that have no value although a perfect client might have given them one.
    """
    sides = [(bounds[:, side].copy(), extra[:, side].copy()) for side in (0, 1)]
    return _figures(values.copy(), uncertain.copy(), sides)


def _figures(values: Values, uncertain: Values, sides: Sequence[tuple[Values, Values]]) -> dict[str, FigureBounds]:
    """Return the bounds of each statistic. All arrays are sorted in place, and may be mapped files: nothing else grows with
    their size."""
    for array in (values, uncertain, *(array for side in sides for array in side)):
        array.sort()
    figures = _Replaced(values, uncertain[:0], uncertain[:0], uncertain[:0]).statistics()
    low, high = (_Replaced(values, uncertain, *side).statistics() for side in sides)
    return {name: FigureBounds(value, min(value, low[name]), max(value, high[name])) for name, value in figures.items()}


class _Replaced:
    """Sorted values, some of which are replaced by others, and more values. It is not written down."""

    def __init__(self, values: Values, replaced: Values, by: Values, more: Values) -> None:
        self._values = values
        self._replaced = replaced
        self._added = (by, more)
        self._size = len(values) - len(replaced) + len(by) + len(more)

    def statistics(self) -> dict[str, float]:
        """Return mean and percentiles; these interpolate linearly, as those of the reports do."""
        found = {"avg": self._mean()}
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            below, part = divmod(share * (self._size - 1), 1)
            low = self._at(int(below))
            high = self._at(min(int(below) + 1, self._size - 1)) if part else low
            found[name] = low + part * (high - low)
        return found

    def _mean(self) -> float:
        parts = [*_chunk_sums(self._values), *(-total for total in _chunk_sums(self._replaced))]
        for added in self._added:
            parts += _chunk_sums(added)
        mean = math.fsum(parts) / self._size
        # Rounding can put the mean of equal values outside their range.
        return min(max(mean, self._at(0)), self._at(self._size - 1))

    def _count(self, value: float) -> int:
        """Return how many values are at most `value`."""
        count = np.searchsorted(self._values, value, "right") - np.searchsorted(self._replaced, value, "right")
        return int(count) + sum(int(np.searchsorted(added, value, "right")) for added in self._added)

    def _at(self, rank: int) -> float:
        """Return the value with this rank: the smallest one that more than `rank` values do not exceed."""
        return min(
            float(array[first])
            for array in (self._values, *self._added)
            if (first := bisect.bisect_left(range(len(array)), True, key=self._reaches(array, rank))) < len(array)
        )

    def _reaches(self, array: Values, rank: int) -> Callable[[int], bool]:
        return lambda index: self._count(float(array[index])) > rank


def _chunk_sums(values: Values) -> Iterator[float]:
    for first in range(0, len(values), _CHUNK):
        yield float(values[first : first + _CHUNK].sum())

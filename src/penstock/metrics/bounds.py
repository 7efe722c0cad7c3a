"""How far the client itself can have moved each headline figure.

A stamp that covers several segments is the newest one's, so content that shares it may have arrived earlier: at the earliest
when the socket was last known to be empty (`Record.earliest`). Each headline metric of a request therefore has a lower and an
upper bound. Means and percentiles grow with every value in them, so the statistics of the lower bounds and of the upper
bounds enclose the true figure.

A request counts as sent when its first byte is about to be handed to the kernel. A client that loses its core right then
sends later, so the time until the kernel has taken the request is a second uncertainty (below 0.1 ms it is ignored).

`effective_latency` also depends on the client's lateness: a perfect client would have sent the request when it had a slot.

Tokens can be closer together than reads of a socket can tell apart. The gaps of such a reply are unresolved although each read
was made in time. A late read, the client's own delay, proves nothing about them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.metrics.batch import Batch, MeasureTable, Selection
from penstock.metrics.metric import Measures
from penstock.metrics.statistics import Column, Values
from penstock.records.record import Record
from penstock.scratch import Scratch

HEADLINE = (
    "time_to_first_token",
    "time_to_second_token",
    "time_to_first_output_token",
    "inter_token_latency",
    "time_per_output_token",
    "request_latency",
    "effective_latency",
)
GAPS = ("time_to_second_token", "inter_token_latency", "time_per_output_token")
"""The headline metrics of the time between tokens."""
WIDE_NS = 2_000_000
"""A read is late if content in it may have arrived earlier than this. Unless the client stalls, it looks at each socket once in
a millisecond."""
_UNRESOLVED, _CLOSE_MS = 0.5, 0.1
"""The gaps of a reply are unresolved if they may be this small a part of what they are at most, or are at most so long."""
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


class Unresolved(NamedTuple):
    """Counts of the replies that have a metric of gaps, or bounds of it."""

    replies: int = 0
    """Those that were read in time, and whose gaps are unresolved."""
    in_time: int = 0
    late: int = 0
    """Those of which a read was late."""


class _Found(NamedTuple):
    """The requests whose value of a metric is not exactly known, and the bounds of all requests."""

    where: Selection
    low: Values
    high: Values


def bounds_of(record: Record, values: dict[str, float]) -> dict[str, Bounds]:
    """Return the bounds in ms of the headline metrics of a request that are not exactly known, also of those that `values`
    lacks. `values` are its metrics."""
    found = batch_bounds(Batch((record,)), MeasureTable.of((Measures(values, {}),)))
    return {tag: Bounds(float(low[0]), float(high[0])) for tag, (where, low, high) in found.items() if where[0]}


def batch_bounds(batch: Batch, table: MeasureTable) -> dict[str, _Found]:
    """Return the bounds in ms of the headline metrics that are not exactly known, also where `table` lacks a value.

    A request whose content shares one stamp has no inter-token latency; it is between 0 and what the time since the socket
    was empty allows.
    """
    found: dict[str, _Found] = {}
    effective = table.get("effective_latency")
    measured = ~np.isnan(effective)  # a second count of the tokens has only token metrics
    late = np.maximum(0, batch.start - batch.issued - batch.connect) / 1e6
    sending = _sending_ms(batch)
    inexact = measured & batch.has_stamps & ((batch.coalesced_counts > 0) | (sending > 0))
    if not inexact.any():
        latency = table.get("request_latency")
        _add(found, "request_latency", measured, latency - sending, latency)
        _add(found, "effective_latency", measured, effective - late - sending, effective)
        return found
    stamps = batch.stamps
    earliest = stamps.copy()
    earliest[batch.coalesced] = batch.earliest
    first, last = batch.first / 1e6, batch.last / 1e6
    first_low = batch.at(0, inexact, earliest) / 1e6
    last_low = batch.at(batch.stamp_counts - 1, inexact, earliest) / 1e6
    _add(found, "time_to_first_token", inexact, first_low - sending, first)
    together = batch.first_pieces > 1
    second = inexact & ~together & (batch.stamp_counts > 1)
    second_low = np.maximum(0.0, batch.at(1, second, earliest) / 1e6 - first)
    _add(
        found,
        "time_to_second_token",
        (inexact & together) | second,
        np.where(together, 0.0, second_low),
        np.where(together, first, batch.at(1, second) / 1e6) - first_low,
    )
    output = batch.get("first_output")
    with_output = inexact & ~np.isnan(output)
    index = np.nan_to_num(output).astype(np.intp)
    low = batch.at(index, with_output, earliest) / 1e6 - sending
    _add(found, "time_to_first_output_token", with_output, low, batch.at(index, with_output) / 1e6)
    latency = np.where(inexact, last, table.get("request_latency"))
    _add(found, "request_latency", measured, np.where(inexact, last_low, latency) - sending, latency)
    low = effective - late - sending - np.where(inexact, last - last_low, 0.0)
    _add(found, "effective_latency", measured, low, effective)
    _add_decode(found, batch, table, inexact, np.maximum(0.0, last_low - first), last - first_low)
    return found


def _sending_ms(batch: Batch) -> Values:
    """Return how long it may have taken until the kernel had the first bytes of each request; 0 if that hardly matters.

    A large body takes several writes, of which only the first one counts, and its time is not known. After a redirect, `sent`
    belongs to the second request.
    """
    sending = batch.sent - batch.start
    counts = (batch.redirects == 0) & (batch.bytes_sent <= _ONE_WRITE_BYTES) & (sending > _IGNORED_NS)
    return np.where(counts, sending / 1e6, 0.0)


def _add(found: dict[str, _Found], tag: str, where: Selection, low: Values, high: Values) -> None:
    found[tag] = _Found(where & (low < high), np.maximum(0.0, low), high)


def _add_decode(
    found: dict[str, _Found], batch: Batch, table: MeasureTable, inexact: Selection, low: Values, high: Values
) -> None:
    """Add the metrics that divide the decode time by a number of tokens.

    The tokens of the first stamp may be left out of that number. If the stamp covers several segments, they may have arrived
    one by one. The divisor is therefore between the one that was used (one token when there was no rest) and all but one.
    """
    gaps = table.get("output_sequence_length") / batch.choices - 1
    where = inexact & (gaps > 0) & (low < high)
    reported = (batch.last - batch.first) / 1e6
    for tag, without_value in (("inter_token_latency", gaps), ("time_per_output_token", 1.0)):
        value = table.get(tag)
        used = np.where(np.nan_to_num(value) > 0, reported / np.where(value > 0, value, 1.0), without_value)
        most = np.where(batch.coalesced_first, gaps, used)
        divisors = np.maximum(most, used), np.minimum(most, used)
        smaller, larger = (np.where(where, divisor, 1.0) for divisor in divisors)
        found[tag] = _Found(where, low / smaller, high / larger)


def _read_late(batch: Batch) -> Selection:
    """Return the replies of which a read was late."""
    wide = batch.stamps[batch.coalesced] - batch.earliest > WIDE_NS
    late: Selection = np.zeros(batch.size, np.bool_)
    late[np.repeat(np.arange(batch.size), batch.coalesced_counts)[wide]] = True
    return late


class RequestBounds:
    """The bounds of all requests of a phase: three numbers for each value that is not exactly known."""

    def __init__(self, scratch: Scratch) -> None:
        self._columns = {tag: _BoundsColumns(scratch) for tag in HEADLINE}
        self.unresolved = dict.fromkeys(GAPS, Unresolved())

    def add(self, batch: Batch, table: MeasureTable) -> None:
        in_time = ~_read_late(batch)
        for tag, (where, low, high) in batch_bounds(batch, table).items():
            values = table.get(tag)
            if where.any():
                self._columns[tag].add(values[where], low[where], high[where])
            if tag in GAPS:
                unresolved = where & ((low < _UNRESOLVED * high) | (high < _CLOSE_MS))
                present = where | ~np.isnan(values)
                found = (int(each.sum()) for each in (unresolved & in_time, present & in_time, present & ~in_time))
                self._count(tag, Unresolved(*found))

    def merge(self, other: RequestBounds) -> None:
        for tag, columns in self._columns.items():
            columns.merge(other._columns[tag])
        for tag, counts in other.unresolved.items():
            self._count(tag, counts)

    def _count(self, tag: str, more: Unresolved) -> None:
        before = self.unresolved[tag]
        self.unresolved[tag] = Unresolved(*(a + b for a, b in zip(before, more, strict=True)))

    def tags(self) -> Iterator[str]:
        """Yield the metrics with at least one value that is not exactly known."""
        return (tag for tag, columns in self._columns.items() if len(columns))

    def figures(self, tag: str, values: Values) -> dict[str, FigureBounds]:
        """Return the bounds of the statistics of a metric with these values, which are sorted in place."""
        columns = self._columns[tag]
        sides = [(columns.bounds[side].values(), columns.extra[side].values()) for side in (0, 1)]
        return figure_bounds(values, columns.uncertain.values(), sides)


class _BoundsColumns:
    """The uncertain values of one metric and their bounds, and the bounds of requests without a value."""

    def __init__(self, scratch: Scratch) -> None:
        self.uncertain = Column(scratch)
        self.bounds = Column(scratch), Column(scratch)
        self.extra = Column(scratch), Column(scratch)

    def __len__(self) -> int:
        return len(self.uncertain) + len(self.extra[0])

    def add(self, values: Values, low: Values, high: Values) -> None:
        """Add the bounds of values; NaN stands for requests without one."""
        known = ~np.isnan(values)
        self.uncertain.extend(values[known])
        for chosen, columns in ((known, self.bounds), (~known, self.extra)):
            columns[0].extend(low[chosen])
            columns[1].extend(high[chosen])

    def merge(self, other: _BoundsColumns) -> None:
        mine, others = ((columns.uncertain, *columns.bounds, *columns.extra) for columns in (self, other))
        for column, more in zip(mine, others, strict=True):
            column.merge(more)


def figure_bounds(values: Values, uncertain: Values, sides: Sequence[tuple[Values, Values]]) -> dict[str, FigureBounds]:
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

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

import math
from collections.abc import Iterator
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
        self._columns = {tag: Column(f"{prefix}-{tag}-bounds.f64") for tag in HEADLINE}

    def add(self, record: Record, values: dict[str, float]) -> None:
        for tag, bounds in bounds_of(record, values).items():
            column = self._columns[tag]
            column.append(values.get(tag, math.nan))
            column.append(bounds.low)
            column.append(bounds.high)

    def tags(self) -> Iterator[str]:
        """Yield the metrics with at least one value that is not exactly known."""
        return (tag for tag, column in self._columns.items() if len(column))

    def figures(self, tag: str, values: Values) -> dict[str, FigureBounds]:
        """Return the bounds of the statistics of a metric with these values."""
        rows = self._columns[tag].values().reshape(-1, 3)
        has_value = ~np.isnan(rows[:, 0])
        known = rows[has_value]
        return figure_bounds(values, known[:, 0], known[:, 1:], rows[~has_value][:, 1:])


def figure_bounds(values: Values, uncertain: Values, bounds: Values, extra: Values) -> dict[str, FigureBounds]:
    """Return the bounds of each statistic of `values`.

    `uncertain` are those of the values that are not exactly known, with a row of `bounds` each. The rows of `extra` belong
    to requests that have no value although a perfect client might have given them one.
    """
    ordered = np.sort(values)
    order = np.argsort(uncertain, kind="stable")
    chosen = uncertain[order]
    # The n-th of several equal values is the n-th of its equals in `ordered`.
    first = np.searchsorted(chosen, chosen, "left")
    places = np.searchsorted(ordered, chosen, "left") + np.arange(len(chosen)) - first
    figures = _statistics(ordered)
    sides = []
    for side in (0, 1):
        moved = ordered.copy()
        moved[places] = bounds[order, side]
        sides.append(_statistics(np.concatenate((moved, extra[:, side]))))
    return {
        name: FigureBounds(value, min(value, sides[0][name]), max(value, sides[1][name]))
        for name, value in figures.items()
    }


def _statistics(values: Values) -> dict[str, float]:
    """Return mean and percentiles; these interpolate linearly, as those of the reports do."""
    ordered = np.sort(values)
    found = {"avg": float(ordered.mean())}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        below, part = divmod(share * (len(ordered) - 1), 1)
        low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
        found[name] = float(low + part * (high - low))
    return found

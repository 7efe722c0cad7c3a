"""Whether a server falls behind the rate of an open loop: the requests that are due and have not ended become more and more.

The 95 % interval of that growth comes from its increments over equal parts of the time. In a queue that never ends, the number
in flight is a random walk with a drift: its increments are independent, and Student's t gives the interval of their mean. In a
stable queue, they are negatively correlated, so the interval is wider than necessary. Bursts of arrivals make neighbouring
increments positively correlated, which widens the interval (`metrics.dependence.correlation_time`). Bursts that last as long as
the run cannot be told from a rate that is too high. `benchmarks.overload` measures how often the decision is wrong.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from penstock.metrics.confidence import t_critical
from penstock.metrics.dependence import correlation_time
from penstock.metrics.intervals import CONFIDENCE
from penstock.metrics.statistics import Values

EARLY = 50
"""Requests whose latencies tell how long the number in flight rises in a run that begins with an empty server."""
_PARTS = 40
_MIN_REQUESTS = 100
_MIN_GROWTH, _MIN_RATIO = 3, 1.1
"""Growth of the number in flight, in requests and relative to its value before."""


class Overload(msgspec.Struct, frozen=True):
    """The load of a server that falls behind, over the time in which the number in flight grew."""

    due: float
    """Requests per second that were due."""
    completed: float
    """Requests per second that ended."""
    before: int
    after: int
    """Requests in flight, or waiting for a slot, at the beginning and at the end."""

    @property
    def sentence(self) -> str:
        completed, due = _three_digits(self.completed), _three_digits(self.due)
        growth = f"the queue grew, from {self.before:,} to {self.after:,} requests in flight."
        return f"The server completed {completed} of {due} requests/s; {growth}"


def _three_digits(rate: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(rate))) if rate > 0 else 0
    return f"{rate:,.{digits}f}"


def find_overload(due: Values, ends: Values) -> Overload | None:
    """Return the overload up to the last request; None if the server keeps up, or if there are too few requests. The requests
    are in the order of their starts, and times are in ns."""
    edges = window(float(due.min()), float(due.max()), ends[:EARLY] - due[:EARLY])
    if edges is None or len(due) < _MIN_REQUESTS:
        return None
    arrived, ended = (np.searchsorted(np.sort(times), edges, side="right") for times in (due, ends))
    return growing(edges, arrived.astype(np.float64), ended.astype(np.float64))


def window(begin: float, end: float, early: Values) -> Values | None:
    """Return the edges of equal parts of the time from `begin` to `end` without the rise at the beginning; None if that takes
    too much of it. `early` are the latencies of the first requests."""
    length = end - begin
    rise = max(0.1 * length, 2 * float(np.quantile(early, 0.9)))
    return None if rise > length / 2 or not length else np.linspace(begin + rise, end, _PARTS + 1)


def growing(edges: Values, arrived: Values, ended: Values) -> Overload | None:
    """Return the overload if the number in flight grew by more than chance. The numbers of requests that were due and that have
    ended are those at the edges of a window."""
    in_flight = arrived - ended
    if in_flight[-1] - in_flight[0] < _MIN_GROWTH or not _exceeds_rate(in_flight, ended):
        return None
    increments = np.diff(in_flight)
    times = _PARTS / _raised(correlation_time(increments))
    if times < 2:
        return None
    error = float(increments.std(ddof=1)) / math.sqrt(times)
    if float(increments.mean()) <= t_critical(int(times) - 1, CONFIDENCE) * error:
        return None
    seconds = float(edges[-1] - edges[0]) / 1e9
    due, completed = (float(counts[-1] - counts[0]) / seconds for counts in (arrived, ended))
    return Overload(due, completed, round(float(in_flight[0])), round(float(in_flight[-1])))


def _exceeds_rate(in_flight: Values, ended: Values) -> bool:
    """Return whether the number in flight grew from the first to the last quarter by more than the rate of completions, as it
    grows with that of arrivals while latencies stay the same."""
    quarter = _PARTS // 4
    first, last = float(ended[quarter] - ended[0]), float(ended[-1] - ended[-1 - quarter])
    return bool(in_flight[-quarter:].mean() * first > _MIN_RATIO * in_flight[:quarter].mean() * max(first, last))


def _raised(tau: float) -> float:
    """Return a correlation time of the increments with what short series estimate too low."""
    return tau if tau == 1 else tau * (1 + 3 / math.sqrt(_PARTS / tau))

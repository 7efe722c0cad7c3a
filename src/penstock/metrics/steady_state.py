"""The steady state of a phase: a window without the ramp at the beginning and the drain at the end.

MSER-5 finds the end of the ramp: of all requests in the order of their starts, it leaves out the first ones, so many that the
mean of the others has the smallest standard error. The window ends with the last intended send. In a closed loop it ends when a
slot is first not refilled, because the load falls from then on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest

import msgspec
import numpy as np

from penstock.metrics.concurrency import Window
from penstock.metrics.outages import find_outages
from penstock.metrics.request_series import Intervals, SeriesTable, figures, intervals
from penstock.metrics.statistics import Stats, Values

OVERLOADED = "overloaded: percentiles are not stationary"
_GROUP = 5
_MIN_REQUESTS = 50


class CensoredBounds(msgspec.Struct, frozen=True):
    low: float
    high: float | None
    """None if the percentile may be arbitrarily large."""


class Censored(msgspec.Struct, frozen=True):
    """Requests that were in flight when the phase was ended. Their latencies are at least the times until then."""

    requests: int
    bounds: dict[str, dict[str, CensoredBounds]]
    """Bounds of percentiles by metric and statistic, if these requests count."""


class SteadyState(msgspec.Struct, frozen=True, omit_defaults=True):
    begin_s: float
    end_s: float
    """In seconds from the first start of the phase."""
    requests: int
    """Successful requests that started in the window."""
    head: int
    """Requests that started before it."""
    metrics: dict[str, Stats]
    intervals: Intervals


def mser5(values: Values) -> int:
    """Return how many of the first values belong to the ramp, at most half of them."""
    groups = len(values) // _GROUP
    if groups < 2:
        return 0
    means = values[: groups * _GROUP].reshape(groups, _GROUP).mean(axis=1)
    means -= means.mean()
    left = np.arange(groups, 0, -1, dtype=np.float64)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(np.square(means[::-1]))[::-1]
    errors = (squares - np.square(sums) / left) / np.square(left)
    return int(np.argmin(errors[: groups // 2 + 1])) * _GROUP


def steady_state(table: SeriesTable, window: Window, over_time: Mapping[str, Stats]) -> SteadyState:
    """Return the figures of the window. `over_time` has its metrics over time, because tokens of streams count when they
    arrive and not when their request ends."""
    first = float(table.starts[0])
    metrics = figures(table, window) | _arriving_tokens(table, window, over_time)
    return SteadyState(
        begin_s=(window[0] - first) / 1e9,
        end_s=(window[1] - first) / 1e9,
        requests=int((table.started_in(window) & table.succeeded).sum()),
        head=int((table.starts < window[0]).sum()),
        metrics=metrics,
        intervals=with_rates(intervals(table, window, whole=False), metrics),
    )


def with_rates(found: Intervals, metrics: Mapping[str, Stats]) -> Intervals:
    """Return the intervals, those of rates extended to the rates themselves. An interval comes from the times between requests
    that ended, so at the edges of its window it counts others than the rate does."""
    for tag, stats in metrics.items():
        interval = found.get(tag, {}).get("avg")
        if stats.avg is not None and interval is not None and interval.low is not None and interval.high is not None:
            low, high = min(interval.low, stats.avg), max(interval.high, stats.avg)
            found[tag] |= {"avg": msgspec.structs.replace(interval, low=low, high=high)}
    return found


def _arriving_tokens(table: SeriesTable, window: Window, over_time: Mapping[str, Stats]) -> dict[str, Stats]:
    decode = over_time.get("effective_decode_throughput")
    if decode is None or decode.avg is None:
        return {}
    firsts = table.starts + table.column("first")  # each brings one token, and decode is the rest
    arrived = table.succeeded & (firsts >= window[0]) & (firsts < window[1])
    rate = decode.avg + int(arrived.sum()) / ((window[1] - window[0]) / 1e9)
    return {"output_token_throughput": Stats(decode.unit, avg=rate)}


def steady_window(table: SeriesTable, *, open_loop: bool) -> Window | None:
    """Return the window of the steady state, in ns; None if there are too few requests to find it. It is the longest one
    without an outage. A ramp follows each outage."""
    last = _last_intended(table) if open_loop else _first_empty_slot(table)
    outages = find_outages(table)
    begins = [-math.inf, *(outage.end for outage in outages if outage.end is not None)]
    found = None
    for after, until in zip_longest(begins, (outage.start for outage in outages), fillvalue=math.inf):
        begin, end = _end_of_ramp(table, after, until), math.ceil(min(until, last))
        if begin is not None and begin < end and (found is None or end - begin > found[1] - found[0]):
            found = int(begin), end
    return found


def _end_of_ramp(table: SeriesTable, after: float, until: float) -> float | None:
    """Return the start of the first request after the ramp, of those that start between two times; None if there are too
    few."""
    latency, starts = table.column("request_latency"), table.starts
    counted = table.succeeded & ~np.isnan(latency) & (starts >= after) & (starts < until)
    latency = latency[counted]
    if len(latency) < _MIN_REQUESTS:
        return None
    ramp = mser5(latency)
    del latency
    return float(starts[counted][ramp])


def _last_intended(table: SeriesTable) -> float:
    return float(max(table.column("intended").max(), table.starts[0]))


def _first_empty_slot(table: SeriesTable) -> float:
    """Return when a request first ended whose slot was not used again. Each worker has its own slots."""
    workers, starts, ends = table.column("worker"), table.starts, table.ends
    times = []
    for worker in np.unique(workers):
        own = workers == worker
        last = starts[own].max()
        later = ends[own & (ends > last)]
        times.append(float(later.min()) if len(later) else float(last))
    return min(times)


def censored(table: SeriesTable) -> Censored | None:
    """Return the requests that the end of the phase cut off, with bounds on the percentiles: at least as if they had ended
    when they were cut off, at most as if they had never ended. None if there are none."""
    cut = table.cut_off & (table.starts > 0)
    if not cut.any():
        return None
    until = (table.ends - table.starts) / 1e6
    first = table.column("first") / 1e6
    bounds = {}
    for tag, known in (("time_to_first_token", first), ("request_latency", None)):
        values = table.column(tag)[table.succeeded]
        values = values[~np.isnan(values)]
        if not len(values):
            continue
        exact = np.full(len(first), np.nan) if known is None else known
        pending = cut & np.isnan(exact)
        values = np.concatenate((values, exact[cut & ~np.isnan(exact)]))
        bounds[tag] = _percentile_bounds(values, until[pending])
    return Censored(int(cut.sum()), bounds)


def _percentile_bounds(values: Values, cuts: Values) -> dict[str, CensoredBounds]:
    low = np.percentile(np.concatenate((values, cuts)), (50, 90, 99))
    ordered = np.sort(values)
    found = {}
    for percent, least in zip((50, 90, 99), low, strict=True):
        rank = math.ceil(percent / 100 * (len(values) + len(cuts) - 1))
        most = float(ordered[rank]) if rank < len(values) else None
        found[f"p{percent}"] = CensoredBounds(float(least), None if most is None else max(most, float(least)))
    return found

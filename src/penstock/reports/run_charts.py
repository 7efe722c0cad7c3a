"""The charts of one run: distributions, the time line, gaps by position, and sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.gap_profile import GapProfile
from penstock.metrics.objectives import Objective
from penstock.metrics.statistics import Values
from penstock.plural import counted
from penstock.reports.charts import Bar, Chart, Kind, Lanes, Mark, Series, is_wide, numbers
from penstock.reports.request_columns import GapLengths, RequestColumns, RequestEnd, Requests

_HISTOGRAM_BINS = 60
_TIME_BINS, _LEAST_TIME_BINS = 240, 12
_REQUESTS_PER_BIN = 8
"""With fewer requests in each bin of the time line, rates and percentiles are noise."""
_CDF_SHARES = np.unique(
    np.concatenate((np.linspace(0, 1, 201), (0.991, 0.992, 0.993, 0.994, 0.996, 0.997, 0.998, 0.999, 0.9995, 0.9999)))
)
_MOST_BARS = 1_500
_MOST_LANES = 48
_LEAST_GAPS = 5
"""Gaps that a position needs for a percentile."""

_METRICS = (
    ("ttft", "Time to first token", "time_to_first_token"),
    ("itl", "Inter-token latency", "inter_token_latency"),
    ("latency", "Request latency", "request_latency"),
)


class TimeAxis(NamedTuple):
    """The bins of the time line."""

    edges: Values
    """In ns from the epoch."""
    origin: float
    """The start of the profiling phases."""

    @classmethod
    def of(cls, requests: Requests, origin: float) -> TimeAxis:
        first, last = float(requests.start.min()), float(requests.end.max())
        bins = min(max(len(requests.start) // _REQUESTS_PER_BIN, _LEAST_TIME_BINS), _TIME_BINS)
        width = _round_up(max(last - first, 1e6) / bins / 1e9) * 1e9
        low = np.floor((first - origin) / width)
        high = np.ceil((last - origin) / width)
        edges = origin + np.arange(low, max(high, low + 1) + 1) * width
        if len(edges) > 2:
            # The first and the last bin end with the run, so that their rates are those of a shorter time.
            inner = edges[1:-1]
            inner = inner[(inner - first >= width / 2) & (last - inner >= width / 2)]
            edges = np.concatenate(((first,), inner, (last,)))
        return cls(edges, origin)

    @property
    def seconds(self) -> Values:
        """The start of each bin, in seconds from the start of profiling."""
        seconds: Values = (self.edges[:-1] - self.origin) / 1e9
        return seconds

    @property
    def end_s(self) -> float:
        """The end of the last bin."""
        return float(self.edges[-1] - self.origin) / 1e9

    @property
    def widths_s(self) -> Values:
        widths: Values = np.diff(self.edges) / 1e9
        return widths

    def counts(self, times: Values) -> Values:
        counts, _ = np.histogram(times, self.edges)
        return counts.astype(np.float64)


def _round_up(seconds: float) -> float:
    """Return the next of 1, 2, 5, 10, … that is not smaller."""
    power = 10.0 ** np.floor(np.log10(seconds))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= seconds * (1 - 1e-9)))


def distribution_charts(
    requests: Requests, gaps: GapLengths, profiled: NDArray[np.bool_], objectives: Sequence[Objective]
) -> Iterator[Chart]:
    """Yield a histogram and a CDF for each latency of the profiling phases that the run has."""
    limits = {objective.metric: objective.limit for objective in objectives if not objective.at_least}
    for name, title, tag in _METRICS:
        column: Values = getattr(requests, name)
        values = np.sort(column[profiled & ~np.isnan(column)])
        if not len(values):
            continue
        marks = [Mark(numbers([limits[tag]])[0] or 0.0, "objective")] if tag in limits else []
        yield _histogram(name, title, values, marks)
        yield cdf(f"{name}-cdf", f"{title}: cumulative", [(counted(len(values), "request"), values)], marks)
        if name == "itl":
            yield from _chunk_gaps(gaps)


def _histogram(name: str, title: str, values: Values, marks: list[Mark]) -> Chart:
    log = is_wide(values)
    low, high = float(values[0]), float(values[-1])
    if high <= low:
        low, high = low - max(abs(low) * 0.005, 1e-3), high + max(abs(high) * 0.005, 1e-3)
        log = False
    edges = np.geomspace(low, high, _HISTOGRAM_BINS + 1) if log else np.linspace(low, high, _HISTOGRAM_BINS + 1)
    counts, _ = np.histogram(values, edges)
    percentiles = [Mark(float(np.percentile(values, q)), f"p{q}") for q in (50, 90, 99)]
    return Chart(
        id=f"{name}-histogram",
        title=title,
        caption=f"Number of requests by {title.lower()}, with the median, p90 and p99 marked.",
        kind="steps",
        x_label=f"{title} (ms)",
        y_label="requests",
        log_x=log,
        x=numbers(edges[:-1]),
        end=numbers(edges)[-1],
        series=[Series("requests", numbers(counts))],
        marks=[*_rounded(percentiles), *marks],
    )


def _rounded(marks: list[Mark]) -> list[Mark]:
    return [Mark(numbers([mark.x])[0] or 0.0, mark.label) for mark in marks]


def cdf(
    id_: str, title: str, groups: Sequence[tuple[str, Values]], marks: Sequence[Mark] = (), *, unit: str = "ms"
) -> Chart:
    """Return the cumulative distributions of groups of sorted values, on a shared axis."""
    points = [
        # Rounded as on the axis: otherwise the last point of the axis could lie below the largest value.
        (label, np.array(numbers(np.interp(_CDF_SHARES * (len(v) - 1), np.arange(len(v)), v)), dtype=np.float64))
        for label, v in groups
    ]
    x = np.unique(np.concatenate([values for _, values in points]))
    series = []
    for label, values in points:
        shares = np.interp(x, values, _CDF_SHARES * 100, left=0, right=100)
        # np.interp takes any of several equal values; a share must not fall below that of the last of them.
        last = np.searchsorted(values, x, side="right") - 1
        shares = np.where(last >= 0, np.maximum(shares, _CDF_SHARES[np.maximum(last, 0)] * 100), shares)
        series.append(Series(label, numbers(shares)))
    return Chart(
        id=id_,
        title=title,
        caption="Share of the requests at or below each value.",
        x_label=f"{title.partition(':')[0]} ({unit})",
        y_label="% of requests",
        log_x=is_wide(x),
        x=numbers(x),
        series=series,
        marks=list(marks),
    )


def _chunk_gaps(gaps: GapLengths) -> Iterator[Chart]:
    counts = gaps.counts
    present = np.flatnonzero(counts)
    if not len(present):
        return
    first, last = int(present[0]), int(present[-1])
    edges = gaps.edges()[first : last + 2] if last + 1 < len(counts) else gaps.edges()[first : last + 1]
    shown = counts[first : first + len(edges)]
    total = int(counts.sum())
    yield Chart(
        id="gaps-histogram",
        title="Gaps between chunks",
        caption=f"Number of gaps by their length, over all {counted(total, 'gap')} of all successful replies.",
        kind="steps",
        x_label="Gap (ms)",
        y_label="gaps",
        log_x=True,
        x=numbers(edges),
        series=[Series("gaps", numbers(shown))],
    )
    yield Chart(
        id="gaps-cdf",
        title="Gaps between chunks: cumulative",
        caption="Share of the gaps at or below each length.",
        x_label="Gap (ms)",
        y_label="% of gaps",
        log_x=True,
        x=numbers(edges),
        series=[Series("gaps", numbers(100 * np.concatenate(((0.0,), np.cumsum(shown)[: len(edges) - 1])) / total))],
    )


def time_charts(requests: Requests, columns: RequestColumns, axis: TimeAxis, marks: list[Mark]) -> Iterator[Chart]:
    """Yield the charts of rates, requests in flight and latencies over time."""
    x = numbers(axis.seconds)
    each = f"in each {_duration(float(np.median(axis.widths_s)))}"

    def chart(id_: str, title: str, caption: str, y_label: str, series: list[Series], kind: Kind = "steps") -> Chart:
        return Chart(
            id=id_,
            title=title,
            caption=caption,
            kind=kind,
            x_label="Time (s)",
            y_label=y_label,
            x=x,
            end=numbers([axis.end_s])[0],
            series=series,
            marks=marks,
            sync="time",
        )

    succeeded = requests.outcome == RequestEnd.SUCCESS
    rates = [
        ("sent", 0, requests.start),
        ("succeeded", 2, requests.end[succeeded]),
        ("failed", 1, requests.end[requests.outcome == RequestEnd.FAILURE]),
        ("cancelled", 7, requests.end[requests.outcome == RequestEnd.CANCELLED]),
    ]
    yield chart(
        "request-rate",
        "Requests per second",
        f"Requests that were sent and that ended {each}, per second.",
        "requests/s",
        [
            Series(label, numbers(axis.counts(times) / axis.widths_s), colour=colour)
            for label, colour, times in rates
            if len(times)
        ],
    )
    tokens = columns.tokens.rates(0, axis.edges)
    if tokens is not None:
        yield chart(
            "token-rate",
            "Output tokens per second",
            f"Output tokens that arrived {each}, per second. A reply's tokens are shared equally by its chunks.",
            "tokens/s",
            [Series("output tokens", numbers(tokens))],
        )
    in_flight = [Series("in flight", numbers(_mean_level(requests.start, requests.end, axis.edges)))]
    streamed = ~np.isnan(requests.first)
    if streamed.any():
        firsts = np.where(streamed, requests.first, requests.end)
        waiting = _mean_level(requests.start, firsts, axis.edges)
        in_flight.append(Series("waiting for the first token", numbers(waiting)))
    yield chart("in-flight", "Requests in flight", f"Mean number of requests {each}.", "requests", in_flight)
    for name, title, _ in _METRICS:
        column: Values = getattr(requests, name)
        series = _percentiles_over_time(requests.start, column, axis)
        if series:
            yield chart(
                f"{name}-time", f"{title} over time", f"Of the requests that started {each}.", "ms", series, "line"
            )


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _mean_level(starts: Values, ends: Values, edges: Values) -> Values:
    """Return the mean number of open intervals between each two of the edges."""

    def integral(times: Values) -> Values:
        """Return the sum over all times of how long ago each was, at each edge."""
        ordered = np.sort(times) - edges[0]
        before = np.searchsorted(ordered, edges - edges[0])
        sums = np.concatenate(((0.0,), np.cumsum(ordered)))
        total: Values = before * (edges - edges[0]) - sums[before]
        return total

    level: Values = np.diff(integral(starts) - integral(ends)) / np.diff(edges)
    return np.maximum(level, 0)


def _percentiles_over_time(starts: Values, values: Values, axis: TimeAxis) -> list[Series]:
    known = ~np.isnan(values)
    if not known.any():
        return []
    starts, values = starts[known], values[known]
    bins = np.searchsorted(axis.edges, starts, side="right") - 1
    order = np.lexsort((values, bins))
    values, bins = values[order], bins[order]
    count = len(axis.edges) - 1
    first = np.searchsorted(bins, np.arange(count))
    size = np.searchsorted(bins, np.arange(count), side="right") - first
    series = []
    for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        rank = np.maximum(np.ceil(share * size).astype(np.intp) - 1, 0)
        chosen = values[np.minimum(first + rank, len(values) - 1)]
        series.append(Series(label, numbers(np.where(size > 0, chosen, np.nan))))
    if series[1].values == series[2].values:  # fewer than 100 requests in each bin
        del series[1]
    return series


def gap_chart(profile: GapProfile | None) -> Chart | None:
    """Return the percentiles of the gaps by their position in the reply; None if there are none."""
    if profile is None or not profile.positions:
        return None
    ranges = [each for each in profile.positions if each.count >= _LEAST_GAPS] or profile.positions
    inexact = profile.inexact_gaps
    left_out = f" {counted(inexact, 'gap')} with inexact timestamps are left out." if inexact else ""
    highest, lowest = max(each.p99 for each in ranges), min(each.p50 for each in ranges)
    return Chart(
        id="gaps-by-position",
        title="Gaps by token position",
        caption=f"Gap before each chunk of content, by its position in the reply. Later positions share a point.{left_out}",
        kind="points",
        x_label="Position of the chunk in the reply",
        y_label="ms",
        log_y=is_wide((max(lowest, 1e-3), highest)),
        x=numbers([(each.first + each.last) / 2 + 1 for each in ranges]),
        series=[Series(name, numbers([getattr(each, name) for each in ranges])) for name in ("p50", "p90", "p99")],
    )


def lanes(requests: Requests, profiled: NDArray[np.bool_], origin: float) -> Lanes | None:
    """Return the requests of the profiling phases as bars in lanes; a part of them if there are many."""
    chosen = np.flatnonzero(profiled)
    if not len(chosen):
        return None
    total = len(chosen)
    chosen = chosen[np.argsort(requests.start[chosen], kind="stable")]
    if total > _MOST_BARS:
        middle = (total - _MOST_BARS) // 2
        chosen = chosen[middle : middle + _MOST_BARS]
    bars: list[Bar] = []
    dropped = 0
    free: list[float] = []
    """When each lane becomes free."""
    of_session: dict[tuple[int, int], int] = {}
    for i in chosen.tolist():
        session = int(requests.phase[i]), int(requests.number[i])
        start, end = float(requests.start[i]), float(requests.end[i])
        lane = of_session.get(session)
        if lane is None or free[lane] > start:
            lane = next((n for n, until in enumerate(free) if until <= start), len(free))
            if lane == len(free):
                free.append(end)
            of_session[session] = lane
        free[lane] = end
        if lane >= _MOST_LANES:
            dropped += 1
            continue
        bars.append(_bar(requests, i, lane, origin))
    used = min(len(free), _MOST_LANES)
    caption = f"Each bar is a request: light until its first content, dark after it. {counted(total, 'request')}"
    if len(bars) < total:
        first, last = bars[0][1], max(bar[3] for bar in bars)
        shown = f"{counted(len(bars), 'request')} of {total:,} from {first:.2f} s to {last:.2f} s"
        caption = f"Each bar is a request: light until its first content, dark after it. A part of the run: {shown}"
    more = f"; {len(free) - used:,} more lanes with {counted(dropped, 'request')} are left out" if dropped else ""
    return Lanes(caption=f"{caption}, in {counted(used, 'lane')}{more}.", lanes=used, bars=bars)


def _bar(requests: Requests, i: int, lane: int, origin: float) -> Bar:
    first = float(requests.first[i])
    return (
        lane,
        round((float(requests.start[i]) - origin) / 1e9, 6),
        None if np.isnan(first) else round((first - origin) / 1e9, 6),
        round((float(requests.end[i]) - origin) / 1e9, 6),
        int(requests.outcome[i]),
        int(requests.number[i]),
        int(requests.turn[i]),
    )

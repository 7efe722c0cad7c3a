"""The figures of the servers' own metrics over the profiling phases, from the samples of a run.

Counters and histograms are differences over the phases: from the last scrape before the first request to the last one before
another phase. Gauges are averaged over the scrapes between the first request and the end of the last one.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.records.log import LoggedPhase, Sample
from penstock.telemetry.concepts import CONCEPTS, HITS
from penstock.telemetry.prometheus import Family, Series
from penstock.telemetry.scrape import PageHistory

SOURCE = "server_metrics"
"""Source of the samples."""
READINGS = "server_readings"
"""Source of the samples that are taken before and after the load only, which say nothing about the time between."""
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_START_TIME = "process_start_time_seconds"


class ProfilingWindow(NamedTuple):
    """The time of the profiling phases, in ns from the epoch."""

    start: int
    end: int
    """End of the last request."""
    stop: int
    """Start of the next phase that does not count."""


def window_of(phases: list[LoggedPhase], covered: list[LoggedPhase], end: int) -> ProfilingWindow:
    """Return the window of the covered profiling phases; `end` is the end of the last request."""
    profiled = [phase for phase in covered if phase.kind == "profiling"]
    if not profiled:
        return ProfilingWindow(0, 0, 0)
    stop = min((phase.start for phase in phases if phase.index > profiled[-1].index), default=1 << 62)
    return ProfilingWindow(profiled[0].start, end, stop)


class SeriesSummary(msgspec.Struct, omit_defaults=True):
    endpoint_url: str
    labels: dict[str, str] = {}
    stats: dict[str, float] = {}
    buckets: dict[str, float] = {}


class MetricSummary(msgspec.Struct, omit_defaults=True):
    type: str
    description: str
    unit: str | None = None
    series: list[SeriesSummary] = []


class ConceptFigures(msgspec.Struct, omit_defaults=True):
    """A quantity that servers publish under different names."""

    unit: str
    avg: float | None = None
    max: float | None = None
    total: float | None = None
    """Difference of a counter."""


class ServerMetrics(msgspec.Struct):
    configured: list[str]
    successful: list[str]
    errors: dict[str, str]
    """The last error of each endpoint that never answered."""
    failed_scrapes: dict[str, int]
    """Scrapes that failed, of endpoints that answered others."""
    endpoint_info: dict[str, dict[str, Any]]
    metrics: dict[str, MetricSummary]
    concepts: dict[str, dict[str, ConceptFigures]]
    """By URL and by the concept's name."""


class CounterGrowth:
    """A series that only grows, and starts again at zero after a restart of the server."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.total = 0.0

    def add(self, value: float, counts: bool, is_first_page: bool) -> bool:
        """Take a value, and return whether the series was reset. With `counts`, the growth is in the window."""
        last = self.last
        self.last = value
        if last is None:  # a series that appears later began at zero
            last = value if is_first_page else 0.0
        if counts:
            self.total += value - last if value >= last else value
        return value < last


class GaugeValues:
    """The values of a gauge, inside and around the window."""

    def __init__(self) -> None:
        self.inside = array("d")
        self.around = array("d")
        """The last value before the window and those after it. They count if there is none inside."""

    def add(self, value: float, at: int, window: ProfilingWindow) -> None:
        if at < window.start:
            self.around = array("d", (value,))
        elif at <= window.end:
            self.inside.append(value)
        else:
            self.around.append(value)

    @property
    def values(self) -> array[float]:
        return self.inside or self.around


class NewestValue(GaugeValues):
    """The last value of a gauge, for readings."""

    @property
    def values(self) -> array[float]:
        return (self.around or self.inside)[-1:]


class _Endpoint:
    def __init__(self, url: str, gauge: type[GaugeValues]) -> None:
        self.url = url
        self.gauge = gauge
        self.by_series: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Series, CounterGrowth | GaugeValues]] = {}
        self.lines: dict[int, CounterGrowth | GaugeValues] = {}
        self.gauges: list[tuple[int, GaugeValues]] = []
        self.concepts: dict[str, CounterGrowth | GaugeValues] = {}
        self.fetched: list[int] = []
        self.updated: list[int] = []
        self.latencies = 0
        self.restarts = 0
        self.counted_from: int | None = None
        self.counted_to = 0
        self.error = ""
        self.errors = 0

    def arrange(self, page: dict[int, tuple[Series, float]]) -> None:
        """Find the figures of the series of a new page."""
        self.lines, self.gauges = {}, []
        for n, (series, _) in page.items():
            key = series.name, tuple(series.labels.items())
            found = self.by_series.get(key)
            if found is None:
                goes_down = series.family.type in ("gauge", "unknown") or "quantile" in series.labels
                figures = self.gauge() if goes_down else CounterGrowth()
                found = self.by_series[key] = series, figures
            self.lines[n] = found[1]
            if isinstance(found[1], GaugeValues):
                self.gauges.append((n, found[1]))

    def surrounds(self, window: ProfilingWindow) -> bool:
        """Return whether there are values from before the window and from after it."""
        return self.counted_from is not None and self.counted_from <= window.start and self.counted_to >= window.end

    @property
    def seconds(self) -> float:
        """The time that the differences of counters cover."""
        return 0.0 if self.counted_from is None else (self.counted_to - self.counted_from) / 1e9


class ServerMetricsBuilder:
    def __init__(self, window: ProfilingWindow, epoch_wall_ns: int = 0, source: str = SOURCE) -> None:
        self._window = window
        self._source = source
        self._epoch = epoch_wall_ns
        self._history = PageHistory()
        self._endpoints: dict[str, _Endpoint] = {}

    def add(self, sample: Sample) -> bool:
        """Take a sample, in order of time, and return whether it has values.

        Samples of other sources, and those after the window, are left out."""
        if sample.source != self._source or sample.at > self._window.stop:
            return False
        url = sample.values["url"]
        gauge = GaugeValues if self._source == SOURCE else NewestValue
        endpoint = self._endpoints.setdefault(url, _Endpoint(url, gauge))
        new = self._history.read(sample)
        if new is None:
            endpoint.error = sample.values.get("error", "")
            endpoint.errors += 1
            return False
        if "page" in sample.values:
            endpoint.arrange(self._history.pages[url])
        self._count(endpoint, sample, list(new))
        return True

    def newest(self, url: str) -> Iterator[tuple[Series, float]]:
        """Yield the series of the newest page of an endpoint: the values of gauges, and the growth of others in the window."""
        figures = self._endpoints[url].lines
        for n, (series, value) in self._history.pages[url].items():
            found = figures[n]
            yield series, found.total if isinstance(found, CounterGrowth) else value

    def _count(self, endpoint: _Endpoint, sample: Sample, new: list[int]) -> None:
        at, page = sample.at, self._history.pages[endpoint.url]
        first, counts = not endpoint.fetched, at > self._window.start
        endpoint.fetched.append(at)
        endpoint.latencies += sample.values["latency_ns"]
        if new:
            endpoint.updated.append(at)
        if not counts or endpoint.counted_from is None:
            endpoint.counted_from = at
        endpoint.counted_to = at
        restarted = False
        for n in new:
            figures = endpoint.lines[n]
            series, value = page[n]
            if isinstance(figures, CounterGrowth):
                restarted |= figures.add(value, counts, first)
            elif series.name == _START_TIME and figures.values:
                restarted |= figures.values[-1] != value
        endpoint.restarts += restarted
        for n, gauge in endpoint.gauges:
            gauge.add(page[n][1], at, self._window)
        self._count_concepts(endpoint, at, counts, first)

    def _count_concepts(self, endpoint: _Endpoint, at: int, counts: bool, first: bool) -> None:
        values = self._history.concepts(endpoint.url)
        for concept in CONCEPTS:
            if concept.name in values and (concept.counter or self._source == SOURCE):
                figures = endpoint.concepts.setdefault(
                    concept.name, CounterGrowth() if concept.counter else GaugeValues()
                )
                if isinstance(figures, CounterGrowth):
                    figures.add(values[concept.name], counts, first)
                else:
                    figures.add(values[concept.name], at, self._window)

    def result(self) -> ServerMetrics | None:
        """Return the figures; None if nothing was scraped."""
        if self._source == READINGS:
            self._endpoints = {url: each for url, each in self._endpoints.items() if each.surrounds(self._window)}
        if not self._endpoints:
            return None
        answered = [endpoint for endpoint in self._endpoints.values() if endpoint.fetched]
        return ServerMetrics(
            configured=list(self._endpoints),
            successful=[endpoint.url for endpoint in answered],
            errors={url: e.error for url, e in self._endpoints.items() if not e.fetched},
            failed_scrapes={endpoint.url: endpoint.errors for endpoint in answered if endpoint.errors},
            endpoint_info={endpoint.url: self._info(endpoint) for endpoint in answered},
            metrics=_metrics(answered),
            concepts={endpoint.url: _concepts(endpoint) for endpoint in answered},
        )

    def _info(self, endpoint: _Endpoint) -> dict[str, Any]:
        fetched, updated = endpoint.fetched, endpoint.updated
        gaps = [(b - a) / 1e6 for a, b in itertools.pairwise(updated)]
        return {
            "total_fetches": len(fetched),
            "first_fetch_ns": self._epoch + fetched[0],
            "last_fetch_ns": self._epoch + fetched[-1],
            "avg_fetch_latency_ms": endpoint.latencies / len(fetched) / 1e6,
            "unique_updates": len(updated),
            "first_update_ns": self._epoch + updated[0],
            "last_update_ns": self._epoch + updated[-1],
            "duration_seconds": (updated[-1] - updated[0]) / 1e9,
            **(
                {"avg_update_interval_ms": sum(gaps) / len(gaps), "median_update_interval_ms": median(gaps)}
                if gaps
                else {}
            ),
        }


def _concepts(endpoint: _Endpoint) -> dict[str, ConceptFigures]:
    result = {}
    for concept in CONCEPTS:
        figures = endpoint.concepts.get(concept.name)
        if isinstance(figures, CounterGrowth):
            result[concept.name] = ConceptFigures(concept.unit, total=figures.total)
        elif figures is not None:
            values = np.asarray(figures.values)
            result[concept.name] = ConceptFigures(concept.unit, avg=float(values.mean()), max=float(values.max()))
    queries, hits = (result.get(name) for name in ("cache_queries", "cache_hits"))
    if queries is not None and hits is not None and queries.total:
        result[HITS] = ConceptFigures("%", avg=100 * (hits.total or 0.0) / queries.total)
    result["restarts"] = ConceptFigures("count", total=float(endpoint.restarts))
    return result


def _metrics(endpoints: Iterable[_Endpoint]) -> dict[str, MetricSummary]:
    metrics: dict[str, MetricSummary] = {}
    for endpoint in endpoints:
        grouped: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[Series, CounterGrowth | GaugeValues]]] = {}
        for series, figures in endpoint.by_series.values():
            labels = tuple((key, text) for key, text in series.labels.items() if key not in ("le", "quantile"))
            grouped.setdefault((series.family.name, labels), []).append((series, figures))
        for (name, labels), parts in grouped.items():
            family = parts[0][0].family
            summary = _series_summary(family, parts, endpoint.seconds)
            if summary is None:
                continue
            summary.endpoint_url, summary.labels = endpoint.url, dict(labels)
            metric = metrics.setdefault(name, MetricSummary(family.type, family.help, _unit(name)))
            metric.series.append(summary)
    return dict(sorted(metrics.items()))


def _series_summary(
    family: Family, parts: list[tuple[Series, CounterGrowth | GaugeValues]], seconds: float
) -> SeriesSummary | None:
    if family.type in ("histogram", "summary"):
        return _histogram(parts, seconds)
    figures = parts[0][1]
    if isinstance(figures, GaugeValues):
        values = np.asarray(figures.values)
        return SeriesSummary("", stats=gauge_statistics(values)) if values.size else None
    rate = {"rate": figures.total / seconds} if seconds else {}
    return SeriesSummary("", stats={"total": figures.total, **rate})


def gauge_statistics(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    low, high = float(values.min()), float(values.max())
    if low == high:  # most gauges of a page never change, and the percentiles of 10,000 gauges take a second
        percentiles, mean, std = [low] * len(_PERCENTILES), low, 0.0
    else:
        percentiles, mean, std = np.percentile(values, _PERCENTILES).tolist(), float(values.mean()), float(values.std())
    named = {f"p{q}": value for q, value in zip(_PERCENTILES, percentiles, strict=True)}
    return {"avg": mean, "min": low, "max": high, "std": std, **named}


def _histogram(parts: list[tuple[Series, CounterGrowth | GaugeValues]], seconds: float) -> SeriesSummary:
    totals: dict[str, float] = {}
    buckets: dict[str, float] = {}
    for series, figures in parts:
        total = figures.total if isinstance(figures, CounterGrowth) else 0.0
        if "le" in series.labels:
            buckets[series.labels["le"]] = total
        elif series.name.endswith(("_sum", "_count")):
            totals[series.name.rpartition("_")[2]] = total
    count, sum_ = totals.get("count", 0.0), totals.get("sum", 0.0)
    stats = {"count": count, "sum": sum_}
    if count:
        stats["avg"] = sum_ / count
    if seconds:
        stats |= {"count_rate": count / seconds, "sum_rate": sum_ / seconds}
    if count and buckets:
        stats |= {f"p{q}_estimate": _quantile(buckets, count * q / 100) for q in _PERCENTILES}
    return SeriesSummary("", stats=stats, buckets=buckets)


def _quantile(buckets: dict[str, float], rank: float) -> float:
    """Return the value at a rank, by linear interpolation in its bucket; the last finite bound for values beyond it."""
    below, low = 0.0, 0.0
    for bound, count in sorted((float(le), count) for le, count in buckets.items()):
        if bound == float("inf"):
            break
        if count >= rank and count > below:
            return low + (bound - low) * (rank - below) / (count - below)
        below, low = count, bound
    return low


def _unit(name: str) -> str | None:
    for suffix in ("seconds", "bytes", "tokens"):
        if name.endswith(f"_{suffix}"):
            return suffix
    return "ratio" if name.endswith(("_perc", "_ratio", "_rate")) else None

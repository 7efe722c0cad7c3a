"""The requests of a phase as series in the order of their starts, and the confidence intervals of their figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nan

import numpy as np
from msgspec import structs

from penstock.metrics.batch import Batch, MeasureTable, Selection
from penstock.metrics.catalogue import CATALOGUE, in_table
from penstock.metrics.concurrency import Window
from penstock.metrics.dependence import InFlight, requests_in_flight
from penstock.metrics.intervals import FigureInterval, Sample, product_interval, rate_interval, share_interval
from penstock.metrics.statistics import Column, Stats, Values
from penstock.scratch import Scratch

PERCENTS = (50, 90, 95, 99)
"""Percentiles with an interval."""
TAGS = tuple(metric.tag for metric in in_table("main") if metric.kind == "record")
_NAMES = (*TAGS, "start", "end", "intended", "worker", "status", "good", "first")
_CHUNK = 1 << 17
_SUCCEEDED, _FAILED, _CUT_OFF, _WITHOUT_SERVER = 0.0, 1.0, 2.0, 3.0
_CONNECTION_FAILURES = frozenset({"ConnectionLost", "ConnectionRefused", "ConnectionFailed"})
_MEAN_ONLY = frozenset({"input_sequence_length"})

Intervals = dict[str, dict[str, FigureInterval]]
"""Intervals by metric and statistic."""


class SeriesRecorder:
    """Takes the requests of a phase in any order."""

    def __init__(self, scratch: Scratch) -> None:
        self._columns = {name: Column(scratch) for name in _NAMES}
        self._count = 0

    def add(self, batch: Batch, table: MeasureTable, good: Selection | None) -> None:
        """`good` says which requests met the objectives; None if there are none."""
        self._count += batch.size
        status = np.where(batch.cancelled, _CUT_OFF, np.where(batch.failed, _FAILED, _SUCCEEDED))
        for index in np.flatnonzero(batch.failed):
            failure = batch.records[index].failure
            if failure is not None and failure.type in _CONNECTION_FAILURES:
                status[index] = _WITHOUT_SERVER
        columns = [table.get(tag) for tag in TAGS]
        columns += [batch.start, batch.end, batch.intended, batch.get("worker"), status]
        columns += [np.full(batch.size, nan) if good is None else good.astype(np.float64), batch.first]
        for column, values in zip(self._columns.values(), columns, strict=True):
            column.extend(values)

    def merge(self, other: SeriesRecorder) -> None:
        self._count += other._count
        for name, column in self._columns.items():
            column.merge(other._columns[name])

    def table(self) -> SeriesTable | None:
        """Return the series; None if there were no requests. Add nothing after this call."""
        if not self._count:
            return None
        return SeriesTable(self._columns)


class SeriesTable:
    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        order = np.argsort(self._read("start"), kind="stable")
        self._order = order.astype(np.uint32) if len(order) < 1 << 32 else order
        status = self.column("status")
        self.succeeded: Selection = status == _SUCCEEDED
        self.cut_off: Selection = status == _CUT_OFF
        self.without_server: Selection = status == _WITHOUT_SERVER
        """Requests that lost their connection or got none."""

    def __len__(self) -> int:
        return len(self._order)

    # Columns are read again rather than kept: each takes 8 bytes per request.

    @property
    def starts(self) -> Values:
        return self.column("start")

    @property
    def ends(self) -> Values:
        return self.column("end")

    def _read(self, name: str) -> Values:
        return self._columns[name].copy()

    def column(self, name: str) -> Values:
        """Return the values in the order of the starts, with NaN for requests without one."""
        values, order = self._read(name), self._order
        ordered = np.empty_like(values)
        for first in range(0, len(order), _CHUNK):  # an index is converted to 8 bytes
            chosen = order[first : first + _CHUNK]
            ordered[first : first + len(chosen)] = values[chosen]
        return ordered

    def has(self, name: str) -> bool:
        """Return whether some request has a value."""
        return any(not np.isnan(chunk).all() for chunk in self._columns[name].chunks())

    def started_in(self, window: Window) -> Selection:
        starts = self.starts
        selected: Selection = (starts >= window[0]) & (starts < window[1])
        return selected

    def values(self, tag: str, selection: Selection) -> Values:
        """Return the values of a metric of the selected requests that have one."""
        values = self.column(tag)
        chosen = selection & ~np.isnan(values)
        return values if chosen.all() else values[chosen]


def intervals(table: SeriesTable, window: Window, *, whole: bool) -> Intervals:
    """Return the intervals of the figures of a window: of the requests that started in it, and of the rates at which requests
    ended in it. `whole` says that it is that of the phase, to which all requests belong."""
    selection = np.ones(len(table), np.bool_) if whole else table.started_in(window)
    found: Intervals = {}
    starts, ends = table.starts, table.ends
    counts = requests_in_flight(starts, ends)
    succeeded = selection & table.succeeded
    in_flight = InFlight(counts[succeeded])
    latencies = None
    for tag in TAGS:
        values = table.column(tag)
        chosen = succeeded & ~np.isnan(values)
        if not chosen.any():
            continue
        complete = int(chosen.sum()) == len(in_flight.counts)
        sample = Sample(values[chosen], in_flight if complete else InFlight(counts[chosen]))
        found[tag] = _metric_intervals(tag, sample)
        if tag == "request_latency":
            latencies = sample.dependence
    sending = float(window[0]), min(float(window[1]), float(starts[-1]))
    of_all = in_flight if whole else InFlight(counts[table.succeeded])
    for tag, columns in _rated(table):
        if tag == "goodput":
            continue
        weights = _weights(table, columns, table.succeeded)
        rate = rate_interval(ends[table.succeeded], weights, of_all, sending, from_empty=whole)
        found[tag] = {"avg": _scaled(rate, 1e9)}
    completed = selection & ~table.cut_off
    if completed.any():
        in_flight = InFlight(counts[completed])
        failed = share_interval((~table.succeeded[completed]).astype(np.float64), in_flight)
        found["request_error_rate"] = {"avg": _scaled(failed, 100.0)}
        if table.has("good"):
            good = np.nan_to_num(table.column("good")[completed])
            share = share_interval(good, in_flight, latencies)
            found["good_request_fraction"] = {"avg": share}
            found["goodput"] = {"avg": product_interval(found["request_throughput"]["avg"], share)}
    return {tag: found[tag] for tag in CATALOGUE if found.get(tag)}


def _metric_intervals(tag: str, sample: Sample) -> dict[str, FigureInterval]:
    found = {"avg": sample.mean()}
    if tag not in _MEAN_ONLY:
        found |= {f"p{percent}": sample.percentile(percent) for percent in PERCENTS}
    return found


def figures(table: SeriesTable, window: Window) -> dict[str, Stats]:
    """Return the statistics of the requests that started in a window, and the rates at which requests ended in it."""
    selection = table.started_in(window) & table.succeeded
    found: dict[str, Stats] = {}
    for tag in TAGS:
        if stats := _stats(CATALOGUE[tag].unit, table.values(tag, selection)):
            found[tag] = stats
    ends = table.ends
    inside = table.succeeded & (ends >= window[0]) & (ends < window[1])
    seconds = (window[1] - window[0]) / 1e9
    for tag, columns in _rated(table):
        weights = _weights(table, columns, inside)
        total = float(inside.sum() if weights is None else weights.sum())
        found[tag] = Stats(CATALOGUE[tag].unit, avg=total / seconds)
    return {tag: found[tag] for tag in CATALOGUE if tag in found}


def _rated(table: SeriesTable) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the metrics that are rates, with the columns whose sum each request adds to them; none stand for 1."""
    yield "request_throughput", ()
    inputs, outputs = "input_sequence_length", "output_sequence_length"
    has_inputs, has_outputs = table.has(inputs), table.has(outputs)
    if has_inputs:
        yield "input_token_throughput", (inputs,)
    if has_outputs:
        yield "output_token_throughput", (outputs,)
    if has_inputs and has_outputs:
        yield "total_token_throughput", (inputs, outputs)
    if table.has("good"):
        yield "goodput", ("good",)


def _weights(table: SeriesTable, columns: tuple[str, ...], selection: Selection) -> Values | None:
    """Return what each of the selected requests adds to a rate. A request that lacks one of the columns adds nothing."""
    if not columns:
        return None
    total = table.column(columns[0])[selection]
    for name in columns[1:]:
        total += table.column(name)[selection]
    return np.nan_to_num(total, copy=False)


def _scaled(interval: FigureInterval, factor: float) -> FigureInterval:
    low, high = (None if bound is None else bound * factor for bound in (interval.low, interval.high))
    return structs.replace(interval, low=low, high=high)


def _stats(unit: str, values: Values) -> Stats | None:
    if not len(values):
        return None
    p50, p90, p95, p99 = np.percentile(values, PERCENTS).tolist()
    return Stats(
        unit=unit,
        avg=float(values.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        min=float(values.min()),
        max=float(values.max()),
        std=float(values.std()),
        count=len(values),
    )

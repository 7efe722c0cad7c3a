"""The companion that sends the GenAI metrics of a run to an OTLP receiver (`--otel-url`).

A thread of the process that has no measuring loop reads the records from the log, so every request is counted once, whichever
worker or process sent it. The histograms count from the start of the run, and carry its id: an export that is lost is made up
for by the next one, and a run that is resumed continues them with what its log holds.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from penstock import __version__
from penstock.metrics.batch import Batch, Selection
from penstock.metrics.statistics import Values
from penstock.plural import counted
from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.runs.companion import Companion, CompanionControl
from penstock.runs.log_tail import LogTail
from penstock.runs.prepare import Prepared
from penstock.secrets import redact_url
from penstock.settings.schema import Settings

_INTERVAL_S = 1.0
_TIMEOUT_S = 2.0
_READING_S = 0.2
"""Processor time for reading before each export, so that the workers have the rest. What has not been read at the end of the
run is read then."""
_BATCH = 2_000
_SECONDS = tuple([0.01 * 2**power for power in range(14)])
_TOKENS = tuple([4.0**power for power in range(14)])
_DURATION, _USAGE = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
_PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
_METRICS = {
    _DURATION: ("s", "Time from the request to the end of the reply", _SECONDS),
    _USAGE: ("{token}", "Tokens of requests and replies, as the server counts them", _TOKENS),
    _FIRST_CHUNK: ("s", "Time from the request to the first content of a streamed reply", _SECONDS),
    _PER_CHUNK: ("s", "Time between two chunks of content of a streamed reply", _SECONDS),
}
"""Unit, description, and the bounds of the buckets that the semantic conventions recommend."""
Attributes = tuple[tuple[str, str | int], ...]


class _Distribution:
    """The values of one metric with the same attributes."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._buckets = np.zeros(len(bounds) + 1, np.int64)
        self._sum, self._min, self._max = 0.0, float("inf"), float("-inf")

    def add(self, values: Values) -> None:
        self._buckets += np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._buckets))
        self._sum += float(values.sum())
        self._min, self._max = min(self._min, float(values.min())), max(self._max, float(values.max()))

    def point(self, attributes: Attributes, start: int, now: int) -> HistogramDataPoint:
        buckets = self._buckets.tolist()
        return HistogramDataPoint(
            dict(attributes), start, now, sum(buckets), self._sum, buckets, self._bounds, self._min, self._max
        )


class GenAiMetrics:
    """The histograms of the profiled requests of a run."""

    def __init__(self, settings: Settings, log: str) -> None:
        """`log` is the folder of the run's log."""
        self._folder = log
        self._tail = LogTail(log)
        self._written = self._tail.written()
        self._log = RunLog(log)
        self._counted: set[int] = set()
        """Indexes of the phases whose records are counted."""
        self._known = 0
        """How many phases the log had when it was read last."""
        self._models = settings.models
        exports, endpoint = settings.exports, settings.endpoint
        declaration = self._log.header.declaration
        shared: Attributes = (
            ("gen_ai.operation.name", declaration.operation),
            ("gen_ai.provider.name", exports.provider or declaration.provider),
        )
        self._attributes = [(*shared, *_server(url)) for url in endpoint.urls]
        self._resource = Resource.create(
            {
                "service.name": "penstock",
                "service.version": __version__,
                "service.instance.id": self._log.experiment_id,
                **dict(exports.otel_attributes),
            }
        )
        self._found: dict[tuple[str, Attributes], _Distribution] = {}
        self.without_usage = 0
        """Successful requests for which the server sent no token counts."""

    def read(self, seconds: float = math.inf) -> None:
        """Add the records that were written since the last call; with `seconds`, stop after about this processor time."""
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            records = list(islice(self._written, _BATCH))
            if len(records) < _BATCH:
                self._written = self._tail.written()
            if not records:
                break
            if counted_records := [record for record in records if self._counts(record)]:
                self._add(counted_records)

    def _counts(self, record: Record) -> bool:
        if record.phase >= self._known:  # a phase is logged before its first request is sent
            self._log = RunLog(self._folder)
            self._known = len(self._log.phases)
            self._counted = {phase.index for phase in self._log.covered_phases if phase.kind == "profiling"}
        return record.phase in self._counted and record.number not in self._log.superseded.get(record.phase, ())

    def _add(self, records: list[Record]) -> None:
        batch = Batch(records)
        duration = np.where(
            batch.succeeded, batch.latency, batch.end - np.where(batch.start > 0, batch.start, batch.end)
        )
        of = [self._attributes[record.url] + self._of_request(record) for record in records]
        for attributes in dict.fromkeys(of):
            chosen = np.fromiter((each == attributes for each in of), np.bool_, len(of))
            self._put(_DURATION, attributes, duration[chosen] / 1e9)
            self._add_successful(batch, chosen & batch.succeeded, attributes)

    def _add_successful(self, batch: Batch, chosen: Selection, attributes: Attributes) -> None:
        streamed = chosen & batch.has_stamps
        self._put(_FIRST_CHUNK, attributes, batch.first[streamed] / 1e9)
        self._put(_PER_CHUNK, attributes, batch.gaps[np.repeat(streamed, batch.gap_counts)] / 1e3)
        prompt, completion = batch.prompt[chosen], batch.completion[chosen]
        self.without_usage += int((np.isnan(prompt) & np.isnan(completion)).sum())
        for kind, tokens in (("input", prompt), ("output", completion)):
            self._put(_USAGE, (*attributes, ("gen_ai.token.type", kind)), tokens[~np.isnan(tokens)])

    def _of_request(self, record: Record) -> Attributes:
        model = self._models[0] if len(self._models) == 1 else record.model
        found: Attributes = () if model is None else (("gen_ai.request.model", model),)
        if record.cancelled:
            return (*found, ("error.type", "cancelled"))
        failure = record.failure
        return found if failure is None else (*found, ("error.type", str(failure.code or failure.type)))

    def _put(self, metric: str, attributes: Attributes, values: Values) -> None:
        if len(values):
            key = metric, attributes
            if key not in self._found:
                self._found[key] = _Distribution(_METRICS[metric][2])
            self._found[key].add(values)

    def data(self) -> MetricsData | None:
        """Return the histograms for an export; None if there are none."""
        start, now = self._log.header.epoch_wall_ns, time.time_ns()
        scope = ScopeMetrics(InstrumentationScope("penstock", __version__), list(self._metrics(start, now)), "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")]) if self._found else None

    def _metrics(self, start: int, now: int) -> Iterator[Metric]:
        for name, (unit, text, _) in _METRICS.items():
            points = [each.point(key[1], start, now) for key, each in self._found.items() if key[0] == name]
            if points:
                yield Metric(name, text, unit, Histogram(points, AggregationTemporality.CUMULATIVE))


class OtelExport(Companion):
    """Exports the metrics about every second, and once more when all records are written."""

    def __init__(self, metrics: GenAiMetrics, url: str, notes: list[str]) -> None:
        self._metrics = metrics
        self._url = url
        self._notes = notes
        self._messages = _Messages(OTLPMetricExporter.__module__)
        self._control: CompanionControl | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def start(self, control: CompanionControl) -> None:
        self._control = control

    def poll(self) -> bool:
        # Only when the first phase is in the log, it says which records of an earlier process are counted.
        if self._thread is None and self._control is not None and self._control.progress.began:
            self._thread = threading.Thread(target=self._export, name="otel", daemon=True)
            self._thread.start()
        return False

    def finish(self) -> str | None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return None

    def _export(self) -> None:
        try:
            with self._messages:
                exporter = OTLPMetricExporter(self._url, timeout=_TIMEOUT_S)
                self._export_until_end(exporter)
                exporter.shutdown()
        except Exception as error:  # whatever happens here must not disturb the run
            self._notes.append(f"The export of metrics to {redact_url(self._url)} has failed: {type(error).__name__}.")

    def _export_until_end(self, exporter: OTLPMetricExporter) -> None:
        while not self._over.wait(_INTERVAL_S):
            self._metrics.read(_READING_S)
            self._send(exporter)
        self._metrics.read()
        if not self._send(exporter):
            self._notes.append(
                f"The metrics of the run were not sent to the OTLP receiver at {redact_url(self._url)}: "
                f"{self._messages.reason()}."
            )
        elif self._metrics.without_usage:
            self._notes.append(
                f"{_USAGE} lacks {counted(self._metrics.without_usage, 'request')} for which the server sent no token counts."
            )

    def _send(self, exporter: OTLPMetricExporter) -> bool:
        data = self._metrics.data()
        self._messages.texts.clear()
        return data is None or exporter.export(data) is MetricExportResult.SUCCESS


class _Messages(logging.Handler):
    """Keeps the messages of the exporter, which say why an export has failed, from the terminal."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._logger = logging.getLogger(name)
        self._propagated = self._logger.propagate

    def __enter__(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def reason(self) -> str:
        """Return the reason in a few words: the messages can contain the URL with its credentials."""
        text = " ".join(self.texts)
        if status := re.search(r"code: (\d+)", text):
            return f"it answered with status {status[1]}"
        for word, reason in (("refused", "connection refused"), ("resol", "its host cannot be found")):
            if word in text.lower():
                return reason
        return "it did not answer in time"


def _server(url: str) -> Attributes:
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    return (("server.address", parts.hostname or ""), ("server.port", port))


def otel(settings: Settings, prepared: Prepared) -> OtelExport:
    """Return the companion for --otel-url."""
    url: Any = settings.exports.otel_url
    return OtelExport(GenAiMetrics(settings, prepared.job.log), url, prepared.companion_notes)

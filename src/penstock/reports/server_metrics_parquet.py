"""Write `server_metrics_export.parquet`: the values of each scrape of the profiling phases, with AIPerf's columns.

A row is a series at a time, or a bucket of a histogram. Gauges have their values. Counters and histograms have their growth
since the last scrape before the phase, as in the JSON file. Labels are columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.extras import require_extra
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import replacing
from penstock.reports.parquet_rows import ParquetRows
from penstock.reports.sink import ReportContext, Sink
from penstock.settings.input_config import input_config
from penstock.telemetry.prometheus import Series
from penstock.telemetry.server_metrics import READINGS, SOURCE, ServerMetrics, ServerMetricsBuilder, window_of

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = "1.0"
_FIXED = ("endpoint_url", "metric_name", "metric_type", "unit", "description", "timestamp_ns")
_VALUES = ("value", "sum", "count", "bucket_le", "bucket_count")
_ROW_GROUP = 50_000
_OF_PARTS = ("le", "quantile")


class ServerMetricsParquet(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        require_extra("parquet", "--server-metrics-formats parquet", "pyarrow")

    def finish(self, summary: Summary) -> None:
        source, metrics = SOURCE, summary.server_metrics
        if metrics is None:
            source, metrics = READINGS, summary.server_readings
        log, epoch = self.context.log, self.context.header.epoch_wall_ns
        if metrics is None or not metrics.successful:
            return
        found = {label for metric in metrics.metrics.values() for series in metric.series for label in series.labels}
        labels = sorted(found.difference(_FIXED, _VALUES))
        window = window_of(log.phases, log.covered_phases, summary.end_ns - epoch)
        builder = ServerMetricsBuilder(window, source=source)
        with replacing(self.path) as file:
            rows = ParquetRows(file, self._schema(summary, metrics, labels))
            for sample in log.samples():
                if not builder.add(sample) or sample.at < window.start:
                    continue
                url = sample.values["url"]
                shared = {"endpoint_url": url, "timestamp_ns": epoch + sample.at}
                for row in _rows(builder.newest(url), metrics):
                    for name, column in rows.columns.items():
                        column.append(shared.get(name, row.get(name)))
                if len(rows) >= _ROW_GROUP:
                    rows.flush()
            rows.close()

    def _schema(self, summary: Summary, metrics: ServerMetrics, labels: list[str]) -> pyarrow.Schema:
        import pyarrow as pa

        numbers = {"timestamp_ns": pa.int64()} | dict.fromkeys(("value", "sum", "count", "bucket_count"), pa.float64())
        header = self.context.header
        metadata = {
            "schema_version": SCHEMA_VERSION,
            "benchmark_id": header.benchmark_id,
            "time_filter_start_ns": str(summary.start_ns),
            "time_filter_end_ns": str(summary.end_ns),
            "endpoint_urls": json.dumps(metrics.successful),
            "label_columns": json.dumps(labels),
            "model_names": json.dumps(header.settings.models),
            "input_config": msgspec.json.encode(
                input_config(header.settings, header.conversations), enc_hook=str
            ).decode(),
        }
        return pa.schema(
            [(name, numbers.get(name, pa.string())) for name in (*_FIXED, *labels, *_VALUES)],
            metadata={f"aiperf.{name}": text for name, text in metadata.items()}
            | {"penstock_version": header.penstock_version},
        )


def _rows(newest: Iterator[tuple[Series, float]], metrics: ServerMetrics) -> Iterator[dict[str, Any]]:
    """Yield the rows of a page. The buckets of a histogram with the same labels are rows with its sum and count."""
    grouped: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[Series, float]]] = {}
    for series, value in newest:
        labels = tuple(item for item in series.labels.items() if item[0] not in _OF_PARTS)
        grouped.setdefault((series.family.name, labels), []).append((series, value))
    for (name, labels), parts in grouped.items():
        family = parts[0][0].family
        unit = metrics.metrics[name].unit if name in metrics.metrics else None
        fixed = {"metric_name": name, "metric_type": family.type, "unit": unit, "description": family.help or None}
        row: dict[str, Any] = {label: text for label, text in labels if label not in _VALUES} | fixed
        if family.type not in ("histogram", "summary"):
            yield row | {"value": parts[0][1]}
            continue
        for series, value in parts:
            if series.name.endswith(("_sum", "_count")):
                row[series.name.rpartition("_")[2]] = value
        buckets: list[tuple[str | None, float | None]] = [
            (series.labels["le"], value) for series, value in parts if "le" in series.labels
        ]
        for bound, count in buckets or [(None, None)]:
            yield row | {"bucket_le": bound, "bucket_count": count}

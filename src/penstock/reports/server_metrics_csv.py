"""Write `server_metrics_export.csv`: comments, then a section for each type of metric, with AIPerf's columns."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from urllib.parse import urlsplit

from penstock.metrics.summary import Summary
from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink
from penstock.telemetry.server_metrics import ServerMetrics


class ServerMetricsCsv(Sink):
    def finish(self, summary: Summary) -> None:
        metrics = summary.server_metrics or summary.server_readings
        if metrics is not None and metrics.successful:
            with replacing(self.path) as file:
                file.write(_text(metrics).encode())


def _text(metrics: ServerMetrics) -> str:
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    text.write("# Server metrics of the profiling phase\r\n")
    text.write(f"# Endpoints: {' '.join(metrics.successful)}\r\n")
    by_type = sorted(metrics.metrics.items(), key=lambda item: (item[1].type, item[0]))
    for kind, members in groupby(by_type, key=lambda item: item[1].type):
        rows = [(name, metric, series) for name, metric in members for series in metric.series]
        names = list(dict.fromkeys(statistic for _, _, series in rows for statistic in series.stats))
        labels = sorted({label for _, _, series in rows for label in series.labels})
        text.write("\r\n")
        write(("Endpoint", "Type", "Metric", "Unit", *names, *labels, "Description"))
        for name, metric, series in rows:
            cells = (f"{series.stats[n]:.6g}" if n in series.stats else "" for n in names)
            texts = (series.labels.get(label, "") for label in labels)
            write(
                (
                    urlsplit(series.endpoint_url).netloc,
                    kind,
                    name,
                    metric.unit or "",
                    *cells,
                    *texts,
                    metric.description,
                )
            )
    return text.getvalue()

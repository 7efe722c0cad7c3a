"""Write `profile_export_aiperf.csv`: a section of distributions, a blank line, a section of single values."""

from __future__ import annotations

import csv
import io

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.metric import Metric, label
from penstock.metrics.statistics import PERCENTILES, Stats
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink

STATISTICS = ("avg", "min", "max", "sum", *(f"p{q}" for q in PERCENTILES), "std")
_UNITS_OMITTED = ("count", "requests")


class SummaryCsv(Sink):
    def finish(self, summary: Summary) -> None:
        with replacing(self.path) as file:
            file.write((csv_text(summary.metrics) + _gpu_text(summary)).encode())


def csv_text(metrics: dict[str, Stats]) -> str:
    """Return the metrics as text in the format of the file."""
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    rows = sorted(metrics.items())
    write(("Metric", *STATISTICS))
    for tag, stats in rows:
        if not stats.scalar:
            write((_name(CATALOGUE[tag]), *(number(getattr(stats, name)) for name in STATISTICS)))
    text.write("\r\n")
    write(("Metric", "Value"))
    for tag, stats in rows:
        if stats.scalar:
            write((_name(CATALOGUE[tag]), number(stats.avg)))
    return text.getvalue()


def _gpu_text(summary: Summary) -> str:
    """Return the section of GPU telemetry, whose header AIPerf writes even without GPUs."""
    telemetry = summary.gpu_telemetry
    if telemetry is None:
        return ""
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    text.write("\r\n\r\n")
    write(("Endpoint", "GPU_Index", "GPU_Name", "GPU_UUID", "Platform", "Metric", *STATISTICS))
    for url, gpus in telemetry.gpus.items():
        for gpu in gpus.values():
            for name, figures in gpu.metrics.items():
                cells = (number(figures.get(statistic)) for statistic in STATISTICS)
                metric = f"{name} ({figures['unit']})"
                write((url, gpu.gpu_index, gpu.gpu_name, gpu.gpu_uuid, gpu.platform, metric, *cells))
    return text.getvalue()


def _name(metric: Metric) -> str:
    return metric.header if metric.unit in _UNITS_OMITTED else label(metric)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"

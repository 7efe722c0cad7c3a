"""Write `profile_export_aiperf.csv`: a section of distributions, a blank line, a section of single values."""

from __future__ import annotations

import csv
import io

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.metric import Metric, label
from penstock.metrics.statistics import PERCENTILES
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink

__all__ = ["SummaryCsv"]

_STATISTICS = ("avg", "min", "max", "sum", *(f"p{q}" for q in PERCENTILES), "std")
_UNITS_OMITTED = ("count", "requests")


class SummaryCsv(Sink):
    def finish(self, summary: Summary) -> None:
        with replacing(self.path) as file:
            file.write(_csv_text(summary).encode())


def _csv_text(summary: Summary) -> str:
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    rows = sorted(summary.metrics.items())
    write(("Metric", *_STATISTICS))
    for tag, stats in rows:
        if not stats.scalar:
            write((_name(CATALOGUE[tag]), *(_number(getattr(stats, name)) for name in _STATISTICS)))
    text.write("\r\n")
    write(("Metric", "Value"))
    for tag, stats in rows:
        if stats.scalar:
            write((_name(CATALOGUE[tag]), _number(stats.avg)))
    _write_gpus(text, summary)
    return text.getvalue()


def _write_gpus(text: io.StringIO, summary: Summary) -> None:
    """Write the section of GPU telemetry, whose header AIPerf writes even without GPUs."""
    telemetry = summary.gpu_telemetry
    if telemetry is None:
        return
    write = csv.writer(text).writerow
    text.write("\r\n\r\n")
    write(("Endpoint", "GPU_Index", "GPU_Name", "GPU_UUID", "Platform", "Metric", *_STATISTICS))
    for url, gpus in telemetry.gpus.items():
        for gpu in gpus.values():
            for name, figures in gpu.metrics.items():
                cells = (_number(figures.get(statistic)) for statistic in _STATISTICS)
                metric = f"{name} ({figures['unit']})"
                write((url, gpu.gpu_index, gpu.gpu_name, gpu.gpu_uuid, gpu.platform, metric, *cells))


def _name(metric: Metric) -> str:
    return metric.header if metric.unit in _UNITS_OMITTED else label(metric)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"

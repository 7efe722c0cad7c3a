"""The charts of server metrics and GPUs over time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.metrics.statistics import Values
from penstock.records.log import Sample
from penstock.reports.charts import Chart, Mark, Series, numbers
from penstock.telemetry.concepts import CONCEPTS
from penstock.telemetry.gpu import UNITS, GpuReader
from penstock.telemetry.scrape import PageHistory
from penstock.telemetry.server_metrics import SOURCE

_MOST_SOURCES = 8
_MOST_POINTS = 300
_SHORT = 0.2
"""Scrapes that are closer than this share of the usual interval give no rate."""
_GPU_METRICS = (
    "nvidia_power_usage",
    "nvidia_gpu_utilization",
    "nvidia_memory_used",
    "nvidia_temperature",
    "nvidia_sm_clock",
)


class TelemetryColumns:
    """Takes the samples of a run in order of time."""

    def __init__(self) -> None:
        self._pages = PageHistory()
        self._gpus = GpuReader()
        self._series: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        """By quantity and source: times and values."""

    def add(self, sample: Sample) -> None:
        if sample.source == SOURCE:
            url = sample.values["url"]
            if self._pages.read(sample) is not None:
                for name, value in self._pages.concepts(url).items():
                    self._append(name, url, sample.at, value)
            return
        for gpu in self._gpus.read(sample) or ():
            for name in _GPU_METRICS:
                if name in gpu.values:
                    self._append(name, f"GPU {gpu.number}", sample.at, gpu.values[name])

    def _append(self, name: str, source: str, at: int, value: float) -> None:
        times, values = self._series.setdefault((name, source), ([], []))
        times.append(at)
        values.append(value)

    def charts(self, first: float, last: float, origin: float, marks: list[Mark]) -> Iterator[Chart]:
        """Yield a chart for each quantity, from `first` to `last` (ns)."""
        for concept in CONCEPTS:
            unit = f"{concept.unit}/s" if concept.counter else concept.unit
            title = f"Server: {concept.header.lower()}"
            yield from self._chart(concept.name, title, unit, concept.counter, (first, last, origin), marks)
        for name in _GPU_METRICS:
            title = f"GPU: {name.removeprefix('nvidia_').replace('_', ' ')}"
            yield from self._chart(name, title, UNITS[name], False, (first, last, origin), marks)

    def _chart(
        self, name: str, title: str, unit: str, counter: bool, span: tuple[float, float, float], marks: list[Mark]
    ) -> Iterator[Chart]:
        sources = [source for quantity, source in self._series if quantity == name]
        first, last, origin = span
        series = []
        grid = np.linspace(first, last, _MOST_POINTS)
        for source in sources[:_MOST_SOURCES]:
            times, values = (np.array(column, dtype=np.float64) for column in self._series[name, source])
            if counter:
                times, values = _rates(times, values)
            if len(times):
                series.append(Series(source, numbers(_at(grid, times, values))))
        known = [value for each in series for value in each.values if value is not None]
        if not known or (counter and not any(known)):
            return
        caption = "As the server reported it." if name in {concept.name for concept in CONCEPTS} else ""
        if len(sources) > _MOST_SOURCES:
            caption += f" The first {_MOST_SOURCES} of {len(sources):,} sources."
        yield Chart(
            id=f"telemetry-{name.replace('_', '-')}",
            title=title,
            caption=caption.strip(),
            kind="steps",
            x_label="Time (s)",
            y_label=unit,
            x=numbers((grid - origin) / 1e9),
            series=series,
            marks=marks,
            sync="time",
        )


def _rates(times: Values, values: Values) -> tuple[Values, Values]:
    """Return the growth per second after each time but the last. A value that falls begins again at zero."""
    growth = np.diff(values)
    growth = np.where(growth < 0, values[1:], growth)
    elapsed = np.diff(times)
    # The last scrape follows the one before it at once; the rate between the two would be a spike.
    usual = elapsed >= _SHORT * np.median(elapsed) if len(elapsed) else elapsed > 0
    return times[:-1][usual], growth[usual] / np.maximum(elapsed[usual], 1) * 1e9


def _at(grid: Values, times: Values, values: Values) -> Values:
    """Return the newest value at each time of the grid; NaN before the first."""
    index = np.searchsorted(times, grid, side="right") - 1
    found: Values = np.where(index >= 0, values[np.maximum(index, 0)], np.nan)
    return found

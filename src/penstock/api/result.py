"""The results of a run, for the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import RunError, UserError
from penstock.metrics.bounds import FigureBounds
from penstock.metrics.capacity import SearchOutcome
from penstock.metrics.certificate import Certificate
from penstock.metrics.experiment import VariationFigures
from penstock.metrics.statistics import Stats
from penstock.metrics.summary import Summary
from penstock.metrics.sweep import best_points, pareto_optimal
from penstock.reports.artifacts import Artifacts


class MetricValue(msgspec.Struct, frozen=True):
    value: float | list[float]
    unit: str


class Request(msgspec.Struct, frozen=True):
    """One request, as in the per-request file."""

    metadata: dict[str, Any]
    """When it was sent and by whom, with AIPerf's names: `request_start_ns`, `session_num`, `turn_index`, …"""
    metrics: dict[str, MetricValue]
    error: dict[str, Any] | None = None
    """None if it succeeded."""

    def __getitem__(self, tag: str) -> float | list[float]:
        """Return the value of a metric."""
        return self.metrics[tag].value


class Result:
    """The results of a run or of one phase."""

    def __init__(self, summary: Summary, artifacts: Artifacts, folder: str) -> None:
        if summary.certificate is None:
            raise RunError("The run has no certificate.")
        self.summary = summary
        """All figures and notes of the report."""
        self.folder = Path(folder)
        """The artifact folder."""
        self._artifacts = artifacts
        self._certificate = summary.certificate

    @property
    def metrics(self) -> Mapping[str, Stats]:
        """Statistics by metric; `docs/metrics.md` describes the metrics."""
        return self.summary.metrics

    @property
    def bounds(self) -> Mapping[str, Mapping[str, FigureBounds]]:
        """Bounds of the true values, by metric and statistic, for the headline figures that are not exactly known."""
        return self.summary.bounds

    @property
    def certificate(self) -> Certificate:
        """Whether the figures can be trusted: `verdict` is VALID, DEGRADED or INVALID, and `reasons` say why."""
        return self._certificate

    def requests(self) -> Iterator[Request]:
        """Yield the requests of the profiling phases, in the order in which they ended."""
        path = self._artifacts.records
        if path is None:
            raise UserError("--export-level summary writes no records; leave it out to read them.")
        decode = msgspec.json.Decoder(Request).decode
        with open(path, "rb") as file:
            for line in file:
                request = decode(line)
                if request.metadata.get("benchmark_phase") == "profiling":
                    yield request

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return one array for each metric with one value per request, and the start and end of each request (Unix ns).

        A request without a metric has NaN. Metrics with a list of values for each request are left out."""
        rows = list(self.requests())
        tags = dict.fromkeys(tag for row in rows for tag in row.metrics)
        columns = {
            name: np.array([row.metadata.get(name, np.nan) for row in rows], dtype=np.float64)
            for name in ("request_start_ns", "request_end_ns")
        }
        for tag in tags:
            values = [row.metrics[tag].value if tag in row.metrics else np.nan for row in rows]
            if not any(isinstance(value, list) for value in values):
                columns[tag] = np.array(values, dtype=np.float64)
        return columns

    def __str__(self) -> str:
        """Return the tables of the report."""
        from penstock.reports.console import console_text

        return console_text(self.summary)

    def __repr__(self) -> str:
        return f"<Result of {self.summary.succeeded} requests, {self._certificate.verdict}, in {self.folder}>"


class PointResult(msgspec.Struct, frozen=True):
    """One run of a sweep or of repeated runs."""

    label: str
    """Such as `concurrency_8` or `run_0002`."""
    parameters: Mapping[str, int | float | str]
    """The values of the sweep: `{"concurrency": 8}`."""
    trial: int
    """Which of the repeated runs it is, from 0."""
    result: Result | None
    """None if nothing could be sent."""
    error: str | None
    """Why its figures cannot be used, in one sentence; None if they can."""

    def __repr__(self) -> str:
        return f"<{self.label}: {self.error or self.result!r}>"


class SweepResult(msgspec.Struct, frozen=True):
    """The results of a sweep, of repeated runs or of a search."""

    points: Sequence[PointResult]
    """One for each run, in the order in which they were measured."""
    variations: Sequence[VariationFigures]
    """The combinations of values: `parameters`, and `figures` over the repeated runs, by names such as
    `request_latency_p99`, with `mean`, `ci_low` and `ci_high`."""
    folder: Path
    search: SearchOutcome | None = None
    """What a search has found: `search.result.limit` has `low`, `high` and `estimate`. None for a sweep."""

    @property
    def best(self) -> Mapping[str, Mapping[str, int | float | str]]:
        """The values with the highest throughput (`best_throughput`) and the lowest latency (`best_latency_p99`)."""
        return {best.name: best.variation.parameters for best in best_points(self.variations)}

    @property
    def pareto_optimal(self) -> list[Mapping[str, int | float | str]]:
        """The values for which no others have both a higher throughput and a lower latency."""
        return [variation.parameters for variation in pareto_optimal(self.variations)]

    def __iter__(self) -> Iterator[PointResult]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

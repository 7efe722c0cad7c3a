"""The figures of an experiment: each combination of values over its repeated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.metrics.confidence import Interval, aggregate
from penstock.metrics.statistics import Stats


class RunFigures(NamedTuple):
    """One point of an experiment."""

    label: str
    variation_label: str
    parameters: dict[str, int | float | str]
    variation: int
    metrics: Mapping[str, Stats]
    verdict: str | None
    """Verdict of its certificate; None without one."""
    requests: int
    """Requests that were completed."""
    failed: int
    error: str | None
    """Why its figures are not used; None if they are."""
    unobservable: Sequence[str] = ()
    """Metrics that tables leave out."""


def shown_parameter(value: int | float | str) -> str:
    """Return a value of a sweep as texts show it."""
    return value if isinstance(value, str) else f"{value:,.15g}"


class VariationFigures(NamedTuple):
    """A combination of values of a sweep; without a sweep, the only one."""

    label: str
    parameters: dict[str, int | float | str]
    runs: list[RunFigures]
    figures: dict[str, Interval]
    """By AIPerf's names such as `request_latency_p99`; empty if no run can be used."""

    @property
    def usable(self) -> list[RunFigures]:
        return [run for run in self.runs if run.error is None]

    def shown(self, name: str) -> Interval | None:
        """Return a figure, unless a run could not observe it."""
        is_hidden = any(name.rpartition("_")[0] in run.unobservable for run in self.usable)
        return None if is_hidden else self.figures.get(name)

    @property
    def failed(self) -> list[RunFigures]:
        return [run for run in self.runs if run.error is not None]


def group_runs(runs: Sequence[RunFigures], confidence: float) -> list[VariationFigures]:
    """Group the runs by variation and compute the figures of each over its runs."""
    groups: dict[int, list[RunFigures]] = {}
    for run in runs:
        groups.setdefault(run.variation, []).append(run)
    result = []
    for _, group in sorted(groups.items()):
        figures = aggregate([run.metrics for run in group if run.error is None], confidence)
        result.append(VariationFigures(group[0].variation_label, group[0].parameters, group, figures))
    return result

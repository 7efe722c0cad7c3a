"""A search for the load at which a figure peaks: the largest output token throughput under a limit, or the largest goodput."""

from __future__ import annotations

import math

from msgspec.structs import replace

from penstock.metrics.recipe_fits import PeakSearch
from penstock.reports.recipe_files import recipe_value
from penstock.runs.auto_sweep import AutoSweep
from penstock.runs.points import PointRuns
from penstock.settings.schema import LoadSettings, Settings

_MIN_REQUESTS = 50
_MIN_SPAN_S, _MAX_SPAN_S = 5.0, 60.0
_LIMITS_PER_SPAN = 10
"""A queue that grows because the rate is 10 % too high needs ten times the limit of a latency to exceed it."""


class PeakRuns(AutoSweep):
    """Each load is a point with a report of its own, and the next one is chosen by the figures of those before."""

    def __init__(self, settings: Settings, folder: str, seed: int | None = None) -> None:
        self._experiment = settings.experiment
        self.parameter = settings.experiment.parameters[0]
        super().__init__(settings, folder, seed)

    def _range(self) -> tuple[float, float]:
        return self._experiment.search_min, self._experiment.search_max

    def points(self) -> PointRuns:
        low, high = self._range()
        search = PeakSearch(low, high, whole=self.parameter == "concurrency")
        while (load := search.next()) is not None:
            result = yield from self._measure(load)
            search.add(load, recipe_value(self._experiment, result.value))

    def _load(self, value: float) -> LoadSettings:
        if self.parameter == "concurrency":
            return super()._load(value)
        load = replace(self._settings.load, rate=value, concurrency=None)
        if load.requests is not None or load.duration_s is not None:
            return load
        settings = self._experiment
        limits = (settings.ttft_sla_ms, settings.itl_sla_ms, settings.tpot_sla_ms, settings.e2e_sla_ms)
        longest = max(limit or 0.0 for limit in limits) / 1000
        span = min(max(_MIN_SPAN_S, _LIMITS_PER_SPAN * longest), _MAX_SPAN_S)
        return replace(load, requests=max(_MIN_REQUESTS, math.ceil(value * span)))

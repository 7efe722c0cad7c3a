"""A sweep that finds the concurrency from which on the throughput of a server no longer grows."""

from __future__ import annotations

import os
from collections.abc import Generator

from msgspec.structs import replace

from penstock.metrics.sweep import SATURATED_SHARE
from penstock.records.log import variation_label
from penstock.runs.points import Point, PointOutcome, PointRuns, Variation
from penstock.runs.variations import base_seed
from penstock.settings.schema import LoadSettings, Settings

_GROWTH = 1.1
"""Doubling the concurrency has to raise the throughput by this factor, or the server is saturated."""
_REFINEMENTS = 2
"""Points between the last two powers of two, to find the lowest concurrency that saturates the server."""
_REQUESTS_PER_SLOT = 10
_MIN_REQUESTS = 20


class AutoSweep:
    servers = 1
    parameter = "concurrency"

    def __init__(self, settings: Settings, folder: str, seed: int | None = None) -> None:
        """`settings.load.concurrency` is the highest concurrency to measure; `seed` is that of a sweep that is resumed."""
        self.variations = [Variation(settings)]
        self._settings = settings
        self._folder = folder
        self._seed = base_seed(settings) if seed is None else seed
        self._count = 0
        low, self._limit = self._range()
        self.largest = [self._at(self._limit)]
        self.settings = replace(self._at(low), output=replace(settings.output, folder=folder))

    def _range(self) -> tuple[float, float]:
        """Return the lowest and the highest load."""
        load = self._settings.load
        limit = load.concurrency or 1
        if load.requests is not None:  # more slots than half the requests would be empty most of the time
            limit = max(1, min(limit, load.requests // 2))
        return 1, limit

    def points(self) -> PointRuns:
        throughputs: dict[float, float] = {}
        concurrency = 1.0
        while True:
            before = max(throughputs.values(), default=0.0)
            throughput = _throughput((yield from self._measure(concurrency)))
            if throughput is None:
                break
            throughputs[concurrency] = throughput
            if throughput < before * _GROWTH or concurrency == self._limit:
                break
            concurrency = min(2 * concurrency, self._limit)
        for _ in range(_REFINEMENTS):
            between = _below_saturation(throughputs)
            throughput = None if between is None else _throughput((yield from self._measure(between)))
            if between is None or throughput is None:
                return
            throughputs[between] = throughput

    def _measure(self, load: float) -> Generator[Point, PointOutcome, PointOutcome]:
        number, self._count = self._count, self._count + 1
        pause_s = self._settings.experiment.point_pause_s if number else 0.0
        parameters: dict[str, int | float | str] = {
            self.parameter: int(load) if self.parameter == "concurrency" else load
        }
        label = variation_label(parameters)
        settings = self._at(load, number)
        output = replace(settings.output, folder=os.path.join(self._folder, label))
        point = Point(replace(settings, output=output), label, parameters, number, pause_s=pause_s)
        return (yield point)

    def _at(self, load: float, number: int = 0) -> Settings:
        """Return the settings of the point with this load, the `number`-th that is measured."""
        seed = self._seed if self._settings.experiment.same_seed else self._seed + number
        return replace(self._settings, load=self._load(load), input=replace(self._settings.input, seed=seed))

    def _load(self, value: float) -> LoadSettings:
        return _with_end(replace(self._settings.load, concurrency=int(value)))


def _throughput(result: PointOutcome) -> float | None:
    return result.value("request_throughput", "avg")


def _with_end(load: LoadSettings) -> LoadSettings:
    """Return the load with enough requests for a steady state, unless the user has set its end."""
    if load.requests is not None or load.conversations is not None or load.duration_s is not None:
        return load
    return replace(load, requests=max(_MIN_REQUESTS, _REQUESTS_PER_SLOT * (load.concurrency or 1)))


def _below_saturation(throughputs: dict[float, float]) -> float | None:
    """Return the concurrency halfway between the lowest one that saturates the server and the next lower one."""
    if not throughputs:
        return None
    enough = SATURATED_SHARE * max(throughputs.values())
    saturated = min(concurrency for concurrency, throughput in throughputs.items() if throughput >= enough)
    lower = max((concurrency for concurrency in throughputs if concurrency < saturated), default=saturated)
    between = (lower + saturated) // 2
    return None if between in throughputs else between

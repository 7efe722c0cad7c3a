"""Repeated runs and sweeps: each variation is run once or several times."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.convergence import DEFAULT_LIMITS, distance, relative_spread
from penstock.records.log import variation_label
from penstock.reports.experiment_folders import run_folder
from penstock.runs.points import Point, PointOutcome, PointRuns, Variation
from penstock.settings.resolve import MIN_RUNS
from penstock.settings.schema import ExperimentSettings, Settings
from penstock.suggest import did_you_mean

_FIXED_SEED = 42
"""Seed of repeated runs without a seed of the user, as in AIPerf."""
_SEEDS_PER_RUN = 100_000
"""Distance between the seeds of repeated runs, larger than the number of points, whose seeds differ by one."""


class Variations:
    servers = 1

    def __init__(self, variations: Sequence[Variation], folder: str, seed: int | None = None) -> None:
        """`folder` is the artifact folder of the experiment; `seed` that of an experiment that is resumed."""
        first = variations[0].settings
        self.variations = variations
        self._folder = folder
        self._experiment = first.experiment
        self._seed = base_seed(first) if seed is None else seed
        self._stability = None if first.experiment.convergence_metric is None else _Stability(first.experiment)
        self.largest = [variation.settings for variation in variations]
        point = self._point(0, 0, 0.0)
        self.settings = replace(point.settings, output=replace(first.output, folder=folder))

    def points(self) -> PointRuns:
        results: dict[int, list[PointOutcome]] = {number: [] for number in range(len(self.variations))}
        stable: set[int] = set()
        overloaded: set[int] = set()
        previous: tuple[int, int] | None = None
        for number, trial in self._order():
            if number in stable or number in above(self.variations, overloaded):
                continue
            result = yield self._point(number, trial, self._pause((number, trial), previous))
            previous = number, trial
            results[number].append(result)
            if result.ended_by_overload:
                overloaded.add(number)
            if self._stability is not None and self._stability.is_reached(results[number]):
                stable.add(number)

    def _order(self) -> Iterator[tuple[int, int]]:
        """Return pairs of the number of a variation and that of its run."""
        numbers, trials = range(len(self.variations)), range(self._experiment.runs)
        if self._experiment.order == "independent":
            return ((number, trial) for number in numbers for trial in trials)
        return ((number, trial) for trial in trials for number in numbers)

    def _pause(self, point: tuple[int, int], previous: tuple[int, int] | None) -> float:
        if previous is None:
            return 0.0
        between_points = self._experiment.point_pause_s if previous[0] != point[0] else 0.0
        between_runs = self._experiment.run_pause_s if previous[1] != point[1] else 0.0
        return max(between_points, between_runs)

    def _point(self, number: int, trial: int, pause_s: float) -> Point:
        settings, parameters = self.variations[number].settings, self.variations[number].parameters
        runs = self._experiment.runs
        folder = os.path.join(self._folder, run_folder(self._experiment, parameters, trial))
        seed = self._point_seed(number, trial)
        return Point(
            replace(
                settings,
                input=replace(settings.input, seed=seed),
                output=replace(settings.output, folder=folder),
            ),
            f"run_{trial + 1:04d}" if runs > 1 else variation_label(parameters),
            parameters,
            number,
            trial,
            warmup=trial == 0 or not self._experiment.warmup_once,
            pause_s=pause_s,
        )

    def _point_seed(self, number: int, trial: int) -> int:
        seed = self._seed if self._experiment.same_seed else self._seed + number
        return seed + trial * _SEEDS_PER_RUN if self._experiment.seed_per_run else seed


def above(variations: Sequence[Variation], overloaded: Collection[int]) -> list[int]:
    """Return the numbers of the variations that differ from an overloaded one by a higher rate alone."""
    return [
        number
        for number, each in enumerate(variations)
        if any(_is_above(each, variations[other]) for other in overloaded)
    ]


def _is_above(one: Variation, other: Variation) -> bool:
    rates = one.settings.load.arrival_rate, other.settings.load.arrival_rate
    same_input = one.settings.input == other.settings.input  # scenarios differ in more than their parameter
    if rates[0] is None or rates[1] is None or rates[0] <= rates[1] or not same_input:
        return False
    return sum(one.parameters[name] != value for name, value in other.parameters.items()) == 1


def base_seed(settings: Settings) -> int:
    """Return the seed of an experiment: the user's, 42 for repeated runs, or a random one."""
    if settings.input.seed is not None:
        return settings.input.seed
    if settings.experiment.runs > 1 and settings.experiment.fixed_seed:
        return _FIXED_SEED
    return secrets.randbits(32)


class _Stability:
    """Decides whether a metric is stable over the runs so far. Raise UserError for a metric that cannot be judged."""

    def __init__(self, settings: ExperimentSettings) -> None:
        self._metric = metric = settings.convergence_metric or ""
        self._statistic = settings.convergence_stat
        self._mode = settings.convergence_mode
        self._confidence = settings.confidence
        limit = settings.convergence_limit
        self._limit = DEFAULT_LIMITS[self._mode] if limit is None else limit
        if metric not in CATALOGUE:
            hint = did_you_mean(metric, CATALOGUE, "docs/metrics.md lists all metrics.")
            raise UserError(f"--convergence-metric: there is no metric {metric}; {hint}")
        if self._mode == "distribution" and CATALOGUE[metric].kind != "record":
            raise UserError(
                f"--convergence-mode distribution compares the values of single requests, which {metric} does not have; use "
                "ci_width or cv."
            )

    def is_reached(self, results: Sequence[PointOutcome]) -> bool:
        values = [value for result in results if (value := result.value(self._metric, self._statistic)) is not None]
        if len(values) < MIN_RUNS:
            return False
        if self._mode == "distribution":
            summaries = [result.report.summary for result in results if result.report is not None]
            runs = [summary.compared_values for summary in summaries]
            earlier = np.concatenate(runs[:-1])
            return bool(len(earlier) and len(runs[-1])) and distance(earlier, runs[-1]) <= self._limit
        spread = relative_spread(values, self._mode, self._confidence)
        return spread is not None and spread <= self._limit

"""The search for a peak, on simulated servers with a known answer: it decides by results only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.cli.profile import COMMAND_LINE
from penstock.metrics.confidence import aggregate
from penstock.metrics.experiment import RunFigures, VariationFigures
from penstock.metrics.statistics import Stats
from penstock.reports.recipe_files import recipe_result
from penstock.runs.peak_runs import PeakRuns
from penstock.runs.points import Point
from penstock.runs.read_experiment import read_experiment
from penstock.settings.parse import parse

Figures = dict[str, float]


class Simulated(NamedTuple):
    """The result of a point of a simulated server."""

    figures: Figures

    def value(self, metric: str, statistic: str) -> float | None:
        return self.figures.get(f"{metric}_{statistic}")


def read(*arguments: Any) -> PeakRuns:
    common = ["--model", "m", "--tokenizer", "builtin", "--streaming", "--search-recipe"]
    experiment = read_experiment(parse(COMMAND_LINE, [*common, *map(str, arguments)], "penstock"))
    assert isinstance(experiment, PeakRuns)
    return experiment


def measure(experiment: PeakRuns, server: Callable[[float], Figures]) -> tuple[list[Point], list[VariationFigures]]:
    """Let an experiment measure a server, and return its points with their figures."""
    points: list[Point] = []
    found: list[VariationFigures] = []
    runs = experiment.points()
    point = next(runs)
    while True:
        (load,) = point.parameters.values()
        figures = server(float(load))
        stats: dict[str, Stats] = {}
        for name, value in figures.items():
            metric, _, _ = name.rpartition("_")
            stats[metric] = Stats("ms", avg=value, p95=value)
        run = RunFigures(point.label, point.label, point.parameters, point.variation, stats, "VALID", 9, 0, None)
        found.append(VariationFigures(point.label, point.parameters, [run], aggregate([stats], 0.95)))
        points.append(point)
        try:
            point = runs.send(Simulated(figures))  # type: ignore[arg-type]
        except StopIteration:
            return points, found


def saturating(load: float) -> Figures:
    """Twenty slots of 100 ms, of which each further request waits for its turn."""
    waiting = max(0.0, load - 20) * 5.0
    return {"output_token_throughput_avg": 100 * min(load, 20.0), "time_to_first_token_p95": 50 + waiting}


def test_throughput_is_that_of_the_lowest_saturating_concurrency() -> None:
    experiment = read("max-throughput-ttft-sla", "--ttft-sla-ms", 200)
    _, found = measure(experiment, saturating)
    result = recipe_result(experiment.settings.experiment, found)
    assert result is not None
    assert result.document["best"]["concurrency"] == 20
    assert result.document["best"]["output_token_throughput"] == 2000


def test_limit_below_the_saturation_decides() -> None:
    def server(load: float) -> Figures:
        return {"output_token_throughput_avg": 100 * load, "inter_token_latency_p95": 2 * load}

    experiment = read("max-throughput-itl-sla", "--tpot-sla-ms", 75, "--concurrency-max", 500)
    _, found = measure(experiment, server)
    result = recipe_result(experiment.settings.experiment, found)
    assert result is not None
    best = result.document["best"]
    assert best["concurrency"] in (36, 37)
    assert best["above"] <= 39
    assert result.sentences == [
        (
            f"The largest output token throughput with a p95 of inter_token_latency below 75 ms: {100 * best['concurrency']:,} "
            f"tokens/sec at concurrency {best['concurrency']}; {best['above']} does not meet the limit."
        )
    ]


def overloaded(rate: float) -> Figures:
    """A server for 80 requests per second, of which fewer are good the further a rate is beyond it."""
    good = rate if rate <= 80 else max(0.0, 80 - 4 * (rate - 80))
    return {"goodput_avg": good, "good_request_fraction_avg": good / rate}


def test_goodput_peaks_at_the_capacity() -> None:
    experiment = read("max-goodput-under-slo", "--e2e-sla-ms", 100, "--search-min", 3)
    points, found = measure(experiment, overloaded)
    result = recipe_result(experiment.settings.experiment, found)
    assert result is not None
    best = result.document["best"]
    assert best["goodput"] == pytest.approx(80, rel=0.05)
    assert best["below"] < 80 < best["above"]
    assert all(point.settings.goodput == "request_latency:100" for point in points)


def test_required_share_of_good_requests_limits_the_rate() -> None:
    def server(rate: float) -> Figures:
        share = 1.0 if rate < 40 else 0.5
        return {"goodput_avg": rate * share, "good_request_fraction_avg": share}

    flags = ("max-goodput-under-slo", "--e2e-sla-ms", 100, "--slo-attainment-fraction", 0.9, "--search-max", 200)
    experiment = read(*flags)
    _, found = measure(experiment, server)
    result = recipe_result(experiment.settings.experiment, found)
    assert result is not None
    assert 37 <= result.document["best"]["request_rate"] < 40


def test_equal_results_lead_to_equal_points() -> None:
    """A search that is resumed receives the results of the log first."""
    flags = ("max-goodput-under-slo", "--e2e-sla-ms", 100, "--random-seed", 4)
    first, second = (measure(read(*flags), overloaded)[0] for _ in range(2))
    assert first == second
    assert len({point.settings.output.folder for point in first}) == len(first)


def test_nothing_within_the_limit_is_said() -> None:
    experiment = read("max-throughput-ttft-sla", "--ttft-sla-ms", 10)
    points, found = measure(experiment, saturating)
    result = recipe_result(experiment.settings.experiment, found)
    assert result is not None
    assert len(points) == 1
    assert not result.document["found"]
    assert result.sentences == ["No concurrency met a p95 of time_to_first_token below 10 ms, not even 1."]

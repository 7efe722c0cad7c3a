"""The best points of a sweep, by hand."""

from __future__ import annotations

from penstock.metrics.experiment import RunFigures, VariationFigures, group_runs
from penstock.metrics.statistics import Stats
from penstock.metrics.sweep import best_points, pareto_optimal, saturation


def point(number: int, throughput: float, latency: float, error: str | None = None) -> RunFigures:
    metrics = {"request_throughput": Stats("requests/sec", avg=throughput), "request_latency": Stats("ms", p99=latency)}
    name = f"concurrency_{number}"
    return RunFigures(name, name, {"concurrency": number}, number, metrics, "VALID", 10, 0, error)


def values(variations: list[VariationFigures]) -> list[float]:
    return [each.parameters["concurrency"] for each in variations]


def test_pareto_front_has_the_points_that_none_beats() -> None:
    sweep = group_runs(
        [point(1, 10, 5), point(2, 20, 5), point(4, 40, 8), point(8, 39, 9), point(16, 41, 30)], confidence=0.95
    )
    assert values(pareto_optimal(sweep)) == [2, 4, 16]
    assert {best.name: best.variation.parameters["concurrency"] for best in best_points(sweep)} == {
        "best_throughput": 16,
        "best_latency_p99": 1,
    }


def test_failed_points_are_neither_best_nor_optimal() -> None:
    sweep = group_runs([point(1, 10, 5), point(2, 99, 1, error="All 10 requests failed.")], confidence=0.95)
    assert values(pareto_optimal(sweep)) == [1]
    assert {best.variation.parameters["concurrency"] for best in best_points(sweep)} == {1}
    assert [len(each.usable) for each in sweep] == [1, 0]


def test_runs_of_a_variation_are_averaged() -> None:
    sweep = group_runs([point(1, 10, 5), point(1, 20, 7)], confidence=0.95)
    assert sweep[0].figures["request_throughput_avg"].mean == 15
    assert values(pareto_optimal(sweep)) == [1]


def test_saturation_is_the_lowest_concurrency_with_nearly_the_highest_throughput() -> None:
    sweep = group_runs([point(1, 10, 5), point(8, 80, 5), point(10, 96, 6), point(16, 100, 9)], confidence=0.95)
    found = saturation(sweep)
    assert found is not None
    assert found.parameters == {"concurrency": 10}
    assert saturation([]) is None

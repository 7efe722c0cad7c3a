"""The computations of recipes find the peak, the knee and the curve of functions that are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.metrics.recipe_fits import PeakSearch, find_knee, fit_curve


def search(
    figure: Callable[[float], float | None], low: float, high: float, *, whole: bool
) -> tuple[float | None, list[float]]:
    found = PeakSearch(low, high, whole=whole)
    loads: list[float] = []
    while (load := found.next()) is not None:
        loads.append(load)
        found.add(load, figure(load))
    return found.best(), loads


@pytest.mark.parametrize("peak", [3.3, 47, 50, 97.5, 480])
@pytest.mark.parametrize("low", [1, 2.5])
def test_peak_of_a_figure_that_grows_and_falls_is_enclosed(peak: float, low: float) -> None:
    best, loads = search(lambda load: load if load <= peak else peak - 3 * (load - peak), low, 1000, whole=False)
    assert best is not None
    assert abs(best - peak) <= 0.05 * peak
    assert len(loads) == len(set(loads)) <= 20


def test_lowest_saturating_load_is_the_best_of_equal_ones() -> None:
    best, _ = search(lambda load: min(load, 16.0), 1, 256, whole=True)
    assert best == 16


@pytest.mark.parametrize("limit", [1, 5, 24, 100])
def test_largest_load_within_a_limit_is_found_if_the_figure_grows(limit: int) -> None:
    best, loads = search(lambda load: load if load <= limit else None, 1, 256, whole=True)
    assert best is not None
    assert limit * 0.95 <= best <= limit
    assert all(load == int(load) for load in loads)


def test_figure_that_grows_up_to_the_range_ends_there() -> None:
    assert search(lambda load: load, 1, 100, whole=True) == (100, [1, 2, 4, 8, 16, 32, 64, 100])


def test_search_ends_if_the_lowest_load_misses_the_limit() -> None:
    assert search(lambda _: None, 4, 100, whole=True) == (None, [4])


def test_knee_is_the_first_load_above_the_share() -> None:
    points = [(8, 12.1), (1, 10.0), (4, 12.0), (2, 9.0), (16, 11.0)]
    assert find_knee(points, 0.2).baseline == (1, 10.0)
    assert find_knee(points, 0.2).knee == (8, 12.1)
    assert find_knee(points, 0.5).knee is None


def test_line_is_fitted_exactly() -> None:
    fit = fit_curve([(x, 0.25 * x + 12) for x in (100, 200, 400, 800)])
    assert fit is not None
    assert (fit.form, fit.coefficients, fit.r_squared) == ("linear", pytest.approx([0.25, 12]), pytest.approx(1))


def test_curve_that_no_line_fits_is_quadratic() -> None:
    fit = fit_curve([(x, 2 * (x - 3) ** 2 + 5) for x in range(7)])
    assert fit is not None
    assert (fit.form, fit.coefficients, fit.r_squared) == ("quadratic", pytest.approx([2, -12, 23]), pytest.approx(1))


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)]])
def test_too_few_points_have_no_fit(points: list[tuple[float, float]]) -> None:
    assert fit_curve(points) is None


def test_constant_figure_has_no_explained_variance() -> None:
    fit = fit_curve([(1, 5.0), (2, 5.0)])
    assert fit is not None
    assert (fit.form, fit.r_squared) == ("linear", 0)

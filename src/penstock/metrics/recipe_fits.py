"""What the recipes of `--search-recipe` compute from the points that they measure: a peak, a knee, and a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

FIT_FLOOR = 0.85
"""A linear fit with a smaller share of explained variance is replaced by a quadratic one, if that is better."""
_GAIN = 1.02
"""A higher load is better only if its figure is higher by this factor: loads beyond saturation have equal figures."""
_TOLERANCE = 0.05
"""The search for a peak ends when its neighbours are this close, relative to the load."""
_MOST_POINTS = 30


class PeakSearch:
    """Chooses loads until the one with the largest figure is enclosed: it doubles the load while the figure grows, and then
    halves the wider gap beside the best load. It finds the peak of a figure that first grows and then falls."""

    def __init__(self, low: float, high: float, *, whole: bool) -> None:
        """`whole` says that loads are whole numbers."""
        self._low, self._high, self._whole = low, high, whole
        self._figures: dict[float, float | None] = {}

    def add(self, load: float, figure: float | None) -> None:
        """Add what was measured; None if the load does not meet its limits."""
        self._figures[load] = figure

    def best(self) -> float | None:
        return best_load(self._figures)

    def next(self) -> float | None:
        """Return the next load to measure; None at the end."""
        if not self._figures:
            return self._low
        best, top = self.best(), max(self._figures)
        if best is None or len(self._figures) >= _MOST_POINTS:
            return None
        if best == top:
            doubled = min(self._high, 2 * top)
            return doubled if doubled > top else None
        below, above = neighbours(self._figures, best)
        gaps = [(abs(end - best), end) for end in (above, below) if end is not None]
        for gap, end in sorted(gaps, reverse=True):
            middle = (best + end) / 2
            if self._whole:
                middle = float(round(middle))
            if gap > _TOLERANCE * best and middle not in self._figures:
                return middle
        return None


def best_load(figures: Mapping[float, float | None]) -> float | None:
    """Return the lowest load whose figure is close to the largest one."""
    known = {load: figure for load, figure in figures.items() if figure is not None}
    largest = max(known.values(), default=0.0)
    return min((load for load, figure in known.items() if figure * _GAIN >= largest), default=None)


def neighbours(loads: Mapping[float, object], load: float) -> tuple[float | None, float | None]:
    """Return the next lower and the next higher load."""
    below = max((each for each in loads if each < load), default=None)
    return below, min((each for each in loads if each > load), default=None)


class Knee(NamedTuple):
    baseline: tuple[float, float]
    """The lowest load, and its figure."""
    knee: tuple[float, float] | None


def find_knee(points: Sequence[tuple[float, float]], threshold: float) -> Knee:
    """Return the first load whose figure exceeds that of the lowest load by more than a share."""
    baseline, *others = sorted(points)
    limit = baseline[1] * (1 + threshold)
    return Knee(baseline, next((point for point in others if point[1] > limit), None))


class Fit(NamedTuple):
    form: str
    """`linear` or `quadratic`."""
    coefficients: list[float]
    """Of the highest power first."""
    r_squared: float


def fit_curve(points: Sequence[tuple[float, float]]) -> Fit | None:
    """Return the least-squares fit; None for fewer than two points."""
    x, y = (np.array(values, np.float64) for values in zip(*points, strict=True)) if points else (np.empty(0),) * 2
    if len(x) < 2:
        return None
    linear = _fit("linear", x, y, 1)
    if linear.r_squared >= FIT_FLOOR or len(x) < 3:
        return linear
    return max(linear, _fit("quadratic", x, y, 2), key=lambda fit: fit.r_squared)


def _fit(form: str, x: np.ndarray, y: np.ndarray, degree: int) -> Fit:
    coefficients = np.polyfit(x, y, degree)
    total = float(np.sum((y - y.mean()) ** 2))
    rest = float(np.sum((y - np.polyval(coefficients, x)) ** 2))
    return Fit(form, [float(each) for each in coefficients], 1 - rest / total if total > 0 else 0.0)

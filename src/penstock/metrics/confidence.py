"""Mean and confidence interval of figures over repeated runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from penstock.metrics.statistics import PERCENTILES, Stats

STATISTICS = ("avg", *(f"p{q}" for q in PERCENTILES), "min", "max", "std", "sum")


class Interval(msgspec.Struct, frozen=True):
    """A figure over repeated runs, with AIPerf's names. One run has a mean and no spread."""

    mean: float
    std: float | None
    """Sample standard deviation (n - 1)."""
    min: float
    max: float
    cv: float | None
    """Coefficient of variation: `std` / mean; None if the mean is 0."""
    se: float | None
    """Standard error of the mean."""
    ci_low: float | None
    ci_high: float | None
    t_critical: float | None
    unit: str

    @property
    def half_width(self) -> float | None:
        """Half the width of the confidence interval."""
        return None if self.ci_high is None else self.ci_high - self.mean


def aggregate(runs: Sequence[Mapping[str, Stats]], confidence: float) -> dict[str, Interval]:
    """Return the interval of each statistic that all runs have, by AIPerf's names such as `request_latency_p99`."""
    if not runs:
        return {}
    result = {}
    for tag, stats in runs[0].items():
        for name in STATISTICS:
            values = [getattr(run[tag], name) for run in runs if tag in run]
            if len(values) == len(runs) and None not in values:
                result[f"{tag}_{name}"] = interval(values, confidence, stats.unit)
    return result


def interval(values: Sequence[float], confidence: float, unit: str = "") -> Interval:
    """Return the mean with its confidence interval, by Student's t distribution."""
    count = len(values)
    mean = math.fsum(values) / count
    low, high = min(values), max(values)
    if count == 1:
        return Interval(mean, None, low, high, None, None, None, None, None, unit)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    error = std / math.sqrt(count)
    critical = t_critical(count - 1, confidence)
    cv = abs(std / mean) if mean else None
    return Interval(mean, std, low, high, cv, error, mean - critical * error, mean + critical * error, critical, unit)


def t_critical(degrees: int, confidence: float) -> float:
    """Return the t for which Student's distribution has this probability between -t and t.

    The probability is a finite sum for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4), in the angle
    whose tangent is t / sqrt(degrees). Bisection finds the angle.
    """
    low, high = 0.0, math.pi / 2
    while True:
        angle = (low + high) / 2
        if angle in (low, high):
            return math.tan(angle) * math.sqrt(degrees)
        if _central_probability(angle, degrees) < confidence:
            low = angle
        else:
            high = angle


def _central_probability(angle: float, degrees: int) -> float:
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees == 1:
        return 2 * angle / math.pi
    odd = degrees % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total

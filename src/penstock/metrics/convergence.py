"""Rules that end repeated runs when a metric is stable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.metrics.confidence import interval
from penstock.metrics.statistics import Values

DEFAULT_LIMITS = {"ci_width": 0.1, "cv": 0.05, "distribution": 0.1}
"""Limit of each mode's figure, below which a metric is stable."""


def relative_spread(values: Sequence[float], mode: str, confidence: float) -> float | None:
    """Return the spread of a figure over the runs relative to its mean: the width of its confidence interval (`ci_width`) or
    its standard deviation (`cv`). None if the mean is 0."""
    figure = interval(values, confidence)
    if not figure.mean or figure.ci_low is None or figure.ci_high is None:
        return None if figure.std else 0.0
    return figure.cv if mode == "cv" else abs((figure.ci_high - figure.ci_low) / figure.mean)


def distance(a: Values, b: Values) -> float:
    """Return the two-sample Kolmogorov-Smirnov statistic: the largest difference of the cumulative distributions."""
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    below_a = np.searchsorted(a, both, side="right") / len(a)
    below_b = np.searchsorted(b, both, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())

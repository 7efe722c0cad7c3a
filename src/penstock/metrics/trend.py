"""Whether a series grows with time."""

from __future__ import annotations

import numpy as np

from penstock.metrics.statistics import Values


def kendall(series: Values) -> float:
    """Return Kendall's rank correlation of a series with time."""
    signs = np.sign(series[None, :] - series[:, None])
    pairs = len(series) * (len(series) - 1) / 2
    return float(np.triu(signs, 1).sum()) / pairs

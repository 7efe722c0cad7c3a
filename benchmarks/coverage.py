"""How often the confidence intervals of simulated runs contain the truth, and how wide they are.

python -m benchmarks.coverage              400 runs of each case
python -m benchmarks.coverage 2000         more runs

The values of a run are correlated with their neighbours. They are a first-order autoregressive process with normal values or
with exponential ones, the exponentials of the former (lognormal), or normal values that are larger by 5 in 30 % of the time
(bimodal).
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from benchmarks.far_end import line
from penstock.metrics.intervals import LEVEL, mean_interval, percentile_interval
from penstock.metrics.statistics import Values

_CASES = product(("normal", "exponential", "lognormal", "bimodal"), (0.0, 0.5, 0.9), (100, 400, 2000, 20_000))
_PERCENTS = (None, 50, 90, 99)
_MIN_INDEPENDENT = 10
"""Percentiles of fewer independent values are covered less often: their correlation is not visible."""
_HIGH, _HIGH_SHARE = 5.0, 0.3
"""Distance of the modes of bimodal values, and the share of the upper one."""
_NORMAL = NormalDist()


class Coverage(NamedTuple):
    given: int
    """Intervals with at least one bound. A bound that is missing claims nothing."""
    contained: int
    """Those that contain the truth."""
    widths: list[float]
    """Half the widths of those with both bounds, relative to those of normal intervals with the true standard error."""

    @property
    def share(self) -> float:
        return self.contained / max(1, self.given)

    @property
    def is_as_claimed(self) -> bool:
        """False if intervals that keep their level contain the truth as rarely in fewer than 0.1 % of all simulations."""
        return self.share >= LEVEL - 3.1 * math.sqrt(LEVEL * (1 - LEVEL) / max(1, self.given))


@lru_cache(maxsize=1)
def simulated(margin: str, runs: int, count: int, correlation: float) -> Values:
    """Return simulated runs, one in each row."""
    rng = np.random.default_rng(1)
    series = np.empty((count, runs))
    if margin == "exponential":
        value = rng.exponential(size=runs)
        for i in range(count):
            value = correlation * value + (rng.random(runs) >= correlation) * rng.exponential(size=runs)
            series[i] = value
    elif margin == "bimodal":
        high = rng.random(runs) < _HIGH_SHARE
        for i in range(count):
            high = np.where(rng.random(runs) < correlation, high, rng.random(runs) < _HIGH_SHARE)
            series[i] = _HIGH * high + rng.standard_normal(runs)
    else:
        value = rng.standard_normal(runs)
        for i in range(count):
            value = correlation * value + math.sqrt(1 - correlation**2) * rng.standard_normal(runs)
            series[i] = value
    return np.ascontiguousarray(np.exp(series.T) if margin == "lognormal" else series.T)


def _truth(margin: str, percent: float | None) -> float:
    if percent is None:
        return {"normal": 0.0, "exponential": 1.0, "lognormal": math.exp(0.5), "bimodal": _HIGH * _HIGH_SHARE}[margin]
    share = percent / 100
    if margin == "exponential":
        return -math.log(1 - share)
    if margin == "bimodal":
        grid = np.linspace(-5, _HIGH + 5, 10_001).tolist()
        below = [(1 - _HIGH_SHARE) * _NORMAL.cdf(x) + _HIGH_SHARE * _NORMAL.cdf(x - _HIGH) for x in grid]
        return float(np.interp(share, below, grid))
    value = _NORMAL.inv_cdf(share)
    return math.exp(value) if margin == "lognormal" else value


def coverage(margin: str, runs: int, count: int, correlation: float, percent: float | None) -> Coverage:
    """Return the coverage of the intervals of the mean, or of a percentile."""
    true = _truth(margin, percent)
    given, contained, halves, estimates = 0, 0, [], []
    for values in simulated(margin, runs, count, correlation):
        if percent is None:
            found = mean_interval(values)
            estimates.append(values.mean())
        else:
            ordered = np.sort(values)
            found = percentile_interval(values, ordered, percent)
            estimates.append(ordered[int(percent / 100 * count)])
        if found.low is not None or found.high is not None:
            given += 1
            contained += (found.low is None or found.low <= true) and (found.high is None or true <= found.high)
        if found.half_width is not None:
            halves.append(found.half_width)
    ideal = _NORMAL.inv_cdf((1 + LEVEL) / 2) * float(np.std(estimates))
    return Coverage(given, contained, [half / ideal for half in halves])


def _measure(margin: str, correlation: float, count: int, percent: float | None, runs: int) -> bool:
    found = coverage(margin, runs, count, correlation, percent)
    enough = percent is None or count * (1 - correlation) / (1 + correlation) >= _MIN_INDEPENDENT
    passed = found.is_as_claimed or not enough
    line(
        f"{'mean' if percent is None else f'p{percent}'} of {count:,} {margin} values, correlation {correlation}",
        f"{100 * found.share:.1f} % contain it",
        f"{100 * len(found.widths) / runs:.0f} % have both bounds",
        (f"{np.median(found.widths):.2f} times the ideal width" if found.widths else "")
        + ("" if enough else " (too few independent values)"),
        passed,
    )
    return passed


def main(runs: int = 400) -> bool:
    results = [
        _measure(*case, percent, runs)
        for case in _CASES
        for percent in _PERCENTS
        if case[0] != "lognormal" or percent is None  # its percentiles have the ranks of the normal values
    ]
    return all(results)


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))

"""How sure a difference is: block bootstrap of paired values, pure and seeded.

Latencies of one run lean on each other: a slow moment makes many of them slow. Drawing single requests would take each for a
witness of its own and give intervals that are far too narrow. So blocks of neighbours are drawn, as long as the
autocorrelation asks for (the rule of Politis and White, as corrected in 2009) and at least the root of their number, and A
and B are drawn together, pair by pair.

Measured by comparing alike with alike: of 100 comparisons, 2 to 7 are called different when values do not lean on each other,
5 to 10 when each carries half of the one before, down to 12 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Estimate", "Values", "block_length", "holm", "paired", "unpaired"]

Values = NDArray[np.float64]
Statistics = Callable[[Values], Values]

_RESAMPLES = 2000
_FEWEST = 400
_WORK = 40_000_000
"""Values to look at for one estimate: beyond it there are fewer resamples."""
_Z = 1.959964


class Estimate(NamedTuple):
    a: float
    b: float
    difference: float
    """b - a."""
    low: float
    high: float
    """An interval that covers the true difference in 95 of 100 such comparisons."""
    p: float
    """How often chance alone would make a difference like this, or a larger one."""
    pairs: int
    block: int


def paired(a: Values, b: Values, statistics: Statistics, seed: int) -> list[Estimate]:
    """`a[i]` and `b[i]` belong together, and neighbours stand side by side. One estimate for each statistic."""
    count = len(a)
    length = max(block_length(b - a), block_length(a), block_length(b))
    rng = np.random.default_rng(seed)
    first, second = statistics(a), statistics(b)
    drawn = np.empty((_resamples(2 * count), len(first)))
    for i in range(len(drawn)):
        places = _blocks(rng, count, length)
        drawn[i] = statistics(b[places]) - statistics(a[places])
    return [_estimate(first[k], second[k], drawn[:, k], count, length) for k in range(len(first))]


def unpaired(a: Values, b: Values, statistics: Statistics, seed: int) -> list[Estimate]:
    """Two series on their own, as the slices of time of two runs are."""
    lengths = block_length(a), block_length(b)
    rng = np.random.default_rng(seed)
    first, second = statistics(a), statistics(b)
    drawn = np.empty((_resamples(len(a) + len(b)), len(first)))
    for i in range(len(drawn)):
        places = _blocks(rng, len(a), lengths[0]), _blocks(rng, len(b), lengths[1])
        drawn[i] = statistics(b[places[1]]) - statistics(a[places[0]])
    count = min(len(a), len(b))
    return [_estimate(first[k], second[k], drawn[:, k], count, max(lengths)) for k in range(len(first))]


def holm(values: list[float]) -> list[float]:
    """The p values for asking all questions at once: with twenty metrics, one in twenty looks special by chance."""
    adjusted = [1.0] * len(values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = highest
    return adjusted


def block_length(values: Values) -> int:
    """How many neighbours to draw together, for a circular block bootstrap."""
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / n
    if n < 10 or variance <= 0:
        return 1
    longest = math.ceil(min(3 * math.sqrt(n), n / 3))
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    lags = min(n - 1, math.ceil(math.sqrt(n)) + quiet)
    covariance = np.array([float(centred[: n - k] @ centred[k:]) / n for k in range(lags + 1)])
    limit = 2 * math.sqrt(math.log10(n) / n)
    loud = np.abs(covariance / variance) >= limit
    last = 0
    while last < lags and loud[last + 1 : last + 1 + quiet].any():
        last += 1
    window = min(2 * max(last, 1), lags)
    k = np.arange(1, window + 1)
    taper = np.clip(2 * (1 - k / window), 0.0, 1.0)
    spread = 2 * float((taper * k * covariance[1 : window + 1]).sum())
    level = variance + 2 * float((taper * covariance[1 : window + 1]).sum())
    wanted = longest if level <= 0 else round((1.5 * (spread / level) ** 2 * n) ** (1 / 3))
    return int(max(round(math.sqrt(n)), min(longest, wanted)))


def _blocks(rng: np.random.Generator, count: int, length: int) -> NDArray[np.int64]:
    """Places of a resample: blocks from random starts, round the end to the beginning."""
    starts = rng.integers(0, count, -(-count // length))
    if length == 1:
        return starts
    places: NDArray[np.int64] = (starts[:, None] + np.arange(length)).ravel()[:count] % count
    return places


def _resamples(values: int) -> int:
    return max(_FEWEST, min(_RESAMPLES, _WORK // max(values, 1)))


def _estimate(a: float, b: float, drawn: Values, count: int, length: int) -> Estimate:
    a, b = float(a), float(b)
    difference = b - a
    # Few blocks know little of their own spread: the interval is stretched as Student's t is against the normal.
    blocks = max(2.0, count / length)
    stretch = _student(blocks - 1) / _Z * math.sqrt(blocks / (blocks - 1))
    drawn = difference + (drawn - drawn.mean()) * stretch
    low, high = (float(value) for value in np.quantile(drawn, (0.025, 0.975)))
    if not drawn.std():
        return Estimate(a, b, difference, low, high, 1.0 if difference == 0 else 0.0, count, length)
    tail = min(float((drawn <= 0).mean()), float((drawn >= 0).mean()))
    if tail == 0:
        # Farther out than any resample: the normal tail, which the resamples are near to.
        tail = 0.5 * math.erfc(abs(difference) / float(drawn.std()) / math.sqrt(2))
    return Estimate(a, b, difference, low, high, min(1.0, 2 * tail), count, length)


def _student(degrees: float) -> float:
    """The 97.5 % point of Student's t, by the expansion of Cornish and Fisher: within 2 % from 2 degrees on."""
    z, v = _Z, max(degrees, 2.0)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )

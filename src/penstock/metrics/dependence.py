"""How far the requests of a run depend on each other: n of them tell as much about a figure as n / tau independent ones.

The variance of a mean of n correlated values is tau times that of n independent ones; tau, the correlation time in requests, is
the sum of the correlations at all distances. Two estimates bound it from below, and the larger one counts:

- The correlations of the values themselves, summed up to where they vanish in noise (Geyer's initial monotone sequence), and
  over some rounds of the requests that are in flight together, which share a queue.
- The number of requests in flight when each one starts. It is observed exactly, it is not hidden by the variation of service
  times, and it shows how slowly the state of the server changes. Latencies that follow it inherit its correlation time. In
  a closed loop it hardly varies, and tells nothing.

Short runs estimate both too low, most of all those that happen to meet no congestion. So both are raised, the more the fewer
correlation times the run has, and a run with fewer than `MIN_TIMES` (after that) has no intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from statistics import NormalDist

import numpy as np

from penstock.metrics.statistics import Values

MIN_TIMES = 20.0
"""Correlation times that a run must have. With 10, simulated queues at loads of 0.7 and more print intervals of the mean for
those runs that met little congestion, and up to 9 % of all runs print one that misses the truth."""
_ROUNDING = 1e-24
"""Variance, relative to the square of the mean, below which values differ only because of rounding."""
_GROUPS = 1 << 14
"""A longer series is replaced by the means of so many groups, because its correlations would take too long."""
_MIN_GROUPS = 25
_ROUNDS = 8
"""Rounds of requests in flight over which correlations of values count, even if they vanish in noise in between. Requests of a
closed loop that are nearly in step miss a percentile in waves: with 24 in flight, 10 slots and service times that differ by
10 %, each wave follows the one before for ten rounds. With 2 rounds, 13 to 21 % of the p90 intervals miss the truth."""
_ROUNDS_PER_GROUP = 4
"""Length of the groups whose means tell how far latencies follow the number in flight, in rounds of requests in flight. Over
single requests, service times hide it."""
_NOISE = 1.4
_MEAN_NOISE = 0.6
"""Sums of correlations below this many standard errors count as zero. The limit of percentiles (`_NOISE`) is larger than that
of means: with the smaller one, 400 independent requests would often seem too few for a p99."""
_LINK_NOISE = 3.0
"""Square of a correlation with the number in flight, in squared standard errors, that counts as none."""
_LINK_FACTOR = 1.15
_CLOSED, _MIN_CLOSED = 0.05, 4
"""Distance of the largest number in flight from the median, relative to it, up to which that number tells nothing, and the
least median. In a closed loop it varies only because clients pause between requests, and following it would triple the
correlation time of exponential service. In an open loop with m in flight, the distance is at least about 3 / sqrt(m)."""
_NORMAL = NormalDist()


def requests_in_flight(starts: Values, ends: Values) -> Values:
    """Return how many requests are in flight when each one starts. The starts are in order."""
    before = np.searchsorted(np.sort(ends), starts, side="right")
    count: Values = np.maximum(np.arange(len(starts)) - before, 0).astype(np.float64)
    return count


def is_constant(values: Values) -> bool:
    """Return whether values differ by rounding at most."""
    mean = float(values.mean())
    return float(values.var()) <= _ROUNDING * mean * mean


def _is_closed(counts: Values) -> bool:
    """Return whether the number in flight is that of a closed loop."""
    median = float(np.median(counts))
    return median >= _MIN_CLOSED and float(counts.max()) - median <= max(1.0, _CLOSED * median)


class InFlight:
    """The number of requests in flight at each start of a series, as the state of the server."""

    def __init__(self, counts: Values) -> None:
        count = len(counts)
        self.counts = counts
        self.typical = max(1, int(np.median(counts)) + 1) if count else 1
        """Requests in flight together."""
        self.largest = int(counts.max()) + 1 if count else 1
        self.horizon = _ROUNDS * self.typical if self.typical > 1 else 1
        """Distance up to which correlations of values count even if they vanish in noise."""
        self.scale = max(1, min(_ROUNDS_PER_GROUP * self.typical, count // _MIN_GROUPS))
        self.is_constant = count < _MIN_GROUPS or is_constant(counts) or _is_closed(counts)
        self.times, self.tau, self.plain = float(count), 1.0, 1.0
        if self.is_constant:
            return
        self.plain = tau = max(1.0, next(_sums(counts))[0])
        """Correlation time as it is estimated."""
        times = count / tau
        self.tau = tau * (1 + 8 / math.sqrt(times) + 20 / times)
        """Correlation time, raised."""
        self.times = count / self.tau
        """Length of the series in correlation times, by the raised estimate."""
        self.horizon = max(self.horizon, int(2 * tau))
        self._means = _group_means(counts, self.scale)
        self._mean_ratio = self.scale * float(self._means.var()) / float(counts.var())

    def tau_of(self, values: Values) -> float:
        """Return the correlation time that values have because they follow the number in flight; 1 if they do not."""
        if self.is_constant or is_constant(values):
            return 1.0
        share = _squared_correlation(values, self.counts)
        tau = 1 + min(1.0, _LINK_FACTOR * math.sqrt(share)) * (self.tau - 1)
        means = _group_means(values, self.scale)
        share = _squared_correlation(means, self._means)
        if share > 0:
            ratio = self.scale * float(means.var()) / float(values.var())
            tau = max(tau, ratio * (1 + share * max(0.0, self.tau / self._mean_ratio - 1)))
        return tau


class Dependence:
    """How far the values of a series depend on each other. They are in the order of the starts."""

    def __init__(self, values: Values, in_flight: InFlight | None = None) -> None:
        self._values = values
        self.in_flight = in_flight or InFlight(np.zeros(len(values)))
        self.count = len(values)

    @cached_property
    def order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.argsort(self._values, kind="stable")

    def _ranks(self) -> Values:
        """Return the ranks of the values; equal ones share their mean rank."""
        ordered = self._values[self.order]
        is_first = np.concatenate(((True,), ordered[1:] != ordered[:-1], (True,)))
        del ordered  # with a million values, each array has 8 MB
        firsts = np.flatnonzero(is_first)
        middles = firsts[1:] + firsts[:-1]
        counts = np.diff(firsts)
        del is_first, firsts
        ranks = np.empty(self.count)
        ranks[self.order] = np.repeat(middles, counts)
        ranks -= 1
        ranks /= 2
        return ranks

    @cached_property
    def _times_of_ranks(self) -> tuple[float, float]:
        """Correlation times of the ranks: because of the number in flight, and by their own correlations."""
        ranks = self._ranks()
        return self.in_flight.tau_of(ranks), self._own(ranks, _NOISE)

    @cached_property
    def _by_load(self) -> float:
        """Correlation time because of the number in flight."""
        return max(self.in_flight.tau_of(self._values), self._times_of_ranks[0])

    @property
    def plain_load(self) -> float:
        """Correlation time of the number in flight as it is estimated, if the values follow it."""
        return self.in_flight.plain if self._by_load > 1 else 1.0

    @property
    def _of_ranks(self) -> float:
        return self._times_of_ranks[1]

    @cached_property
    def of_mean(self) -> float:
        """Correlation time that counts for the mean."""
        return max(self._by_load, self._own(self._values, _MEAN_NOISE))

    @cached_property
    def times(self) -> float:
        """Correlation times of the series."""
        if is_constant(self._values):
            return float(self.count)
        times = self.count / max(self.of_mean, self._of_ranks)
        return min(times, self.in_flight.times) if self._by_load > 1 else times

    @property
    def is_known(self) -> bool:
        """Whether the series is long enough to tell its correlation time."""
        return self.times >= MIN_TIMES

    def of_share(self, happened: Values, share: float) -> float:
        """Return the correlation time that counts for the share of values at or below a quantile, of zeros and ones."""
        # Requests with weakly correlated ranks, as if they were normal: the correlation of the indicators is smaller.
        part = _NORMAL.pdf(_NORMAL.inv_cdf(share)) ** 2 / (share * (1 - share))
        return max(self._by_load, 1 + part * (self._of_ranks - 1), self._own(happened, _NOISE))

    def _own(self, values: Values, noise: float) -> float:
        """Return the correlation time by the correlations of the values."""
        tau, distance = _longest(values, noise, self.in_flight.horizon)
        times = self.count / max(tau, distance / 4)
        return 1.0 if tau == 1 else tau * (1 + 4 / math.sqrt(times) + 20 / times)


def correlation_time(values: Values, noise: float = _MEAN_NOISE, horizon: int = 1) -> float:
    """Return the correlation time of a series by its correlations; 1 if they are within so many standard errors."""
    return _longest(values, noise, horizon)[0]


def _longest(values: Values, noise: float, horizon: int) -> tuple[float, int]:
    """Return the correlation time and the distance up to which it sums. Correlations are summed to where they vanish in
    noise, and over the horizon, because they may change their sign in between."""
    sums = [] if is_constant(values) else _sums(values, horizon)
    return max((s for s in sums if s[0] >= 1 + 2 * noise * math.sqrt(s[1] / len(values))), default=(1.0, 1))


def _sums(values: Values, horizon: int = 1) -> Iterator[tuple[float, int]]:
    """Yield summed correlations of a series, each with the distance up to which it sums."""
    size = -(-len(values) // _GROUPS)
    means = _group_means(values, size)
    ratio = size * float(means.var()) / float(values.var())
    correlations = _correlations(means)
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    last = max(1, int(negative[0]) if len(negative) else len(pairs))
    yield ratio * (2 * float(np.minimum.accumulate(pairs[:last]).sum()) - 1), 2 * last * size
    least = min(-(-horizon // size), len(correlations) // 4)
    if least > 2 * last:
        yield ratio * (1 + 2 * float(correlations[1 : least + 1].sum())), least * size


def _correlations(values: Values) -> Values:
    """Return the autocorrelations of a series at all distances."""
    count = len(values)
    length = 1 << (2 * count - 1).bit_length()
    transformed = np.fft.rfft(values - values.mean(), length)
    products: Values = np.fft.irfft(np.square(transformed.real) + np.square(transformed.imag), length)[:count]
    if products[0] > 0:
        products /= products[0]
    return products


def _group_means(values: Values, size: int) -> Values:
    if size <= 1:
        return values
    whole = len(values) // size * size
    means: Values = values[:whole].reshape(-1, size).mean(axis=1)
    return means


def _squared_correlation(values: Values, others: Values) -> float:
    """Return the square of the correlation of two series, without what independent ones have by chance."""
    centred, other = values - values.mean(), others - others.mean()
    squares = float(centred @ centred) * float(other @ other)
    if squares <= 0:
        return 0.0
    return max(0.0, float(centred @ other) ** 2 / squares - _LINK_NOISE / len(values))

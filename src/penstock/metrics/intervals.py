"""Confidence intervals of means, percentiles, rates and shares of one run.

Latencies of neighbouring requests are correlated, because the requests share queues and batches, so n requests tell less about
a figure than n independent ones: as much as n / tau, where `metrics.dependence` gives tau for each figure. That number gives
the error of a mean, and the skewness moves its interval towards the long tail (Hall's transformation of Student's t). The exact
binomial distribution of that number gives the order statistics between which a percentile lies. Shares use it with the
bounds of Clopper and Pearson. A rate is a ratio: what ended in groups of requests, by the time that each group took (Fieller).

A run that is too short to tell tau has no intervals, nor has a percentile that needs more independent requests. The rule
depends on how long the run is, not on a test of independence: a test would select the runs that look independent by chance.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache, reduce
from statistics import NormalDist

import msgspec
import numpy as np

from penstock.metrics.confidence import t_critical
from penstock.metrics.dependence import MIN_TIMES, Dependence, InFlight, correlation_time, is_constant
from penstock.metrics.statistics import Values

CONFIDENCE = 0.95
_MIN_VALUES = 25
_MIN_BEYOND = 15
"""A percentile with fewer values beyond it takes the correlation of a less extreme one, too: how the few come in groups says
too little. Without, p99 intervals of 400 values with a correlation of 0.9 cover the truth in 77 % of the runs."""
_MIN_ROUNDS, _MIN_GROUPS, _MAX_GROUPS = 4, 8, 400
"""Groups of requests whose times give the interval of a rate: rounds of a closed loop, independent groups, and groups."""
_MAX_DEGREES = 1000
_BURST = 20
"""Failures often come in bursts: a server restarts, a proxy refuses. A run without one cannot know, so its bound assumes bursts
of so many requests, or of as many as are in flight. Of 1,000 requests of which 2 % fail in bursts of 20, a third of the runs
has no failure, and the bound for independent ones (0.37 %) misses the truth."""
_PART = 1 << 17


class FigureInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    """The confidence interval of a figure. Without bounds, the sample does not support one."""

    low: float | None = None
    high: float | None = None
    effective_count: float | None = None
    """Number of independent values that would tell as much."""
    advice: str | None = None
    """How many requests would suffice, if bounds are missing."""
    note: str | None = None
    """Why they are missing."""

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


class Sample:
    """The values of a metric in the order of the starts of the requests."""

    def __init__(self, values: Values, in_flight: InFlight | None = None) -> None:
        self._values = values
        self.dependence = Dependence(values, in_flight)

    @cached_property
    def _ordered(self) -> Values:
        ordered: Values = self._values[self.dependence.order]
        return ordered

    def mean(self, confidence: float = CONFIDENCE) -> FigureInterval:
        """Return the interval of the mean."""
        values, count = self._values, len(self._values)
        if count < _MIN_VALUES:
            return _too_few(count)
        mean = float(values.mean())
        if is_constant(values):
            return FigureInterval(mean, mean, float(count))
        tau = self.dependence.of_mean
        if not self.dependence.is_known:
            return _correlated(self.dependence, tau)
        effective = count / tau
        error = math.sqrt(_central_moment(values, mean, 2) / (effective - 1))
        critical = _student(self.dependence.times, confidence)
        skewness = _skewness(values) / math.sqrt(effective)
        return FigureInterval(
            mean - error * _hall(critical, skewness), mean - error * _hall(-critical, skewness), effective
        )

    def percentile(self, percent: float, confidence: float = CONFIDENCE) -> FigureInterval:
        """Return the interval of a percentile.

        The sample does not support the percentile if its largest value is below the true percentile with more probability than
        the confidence allows: 368 independent values are needed for the interval of the 99th percentile at 95 %.
        """
        ordered, count, share = self._ordered, len(self._values), percent / 100
        if count < _MIN_VALUES:
            return _too_few(count)
        tau = self._tau_at(share)
        best, needed = count / tau, needed_for(percent, confidence)
        if not self.dependence.is_known:
            return _correlated(self.dependence, tau, needed)
        if best < needed:
            note = f"{needed:,} independent values are needed, and there are {best:,.0f}"
            return _missing(self.dependence, tau, needed * tau, note)
        least = best if tau == 1 else best / _widening(self.dependence.times, confidence)
        # Bounds as ranks among independent values: P(X >= high) and P(X < low) are `tail` for the binomial X of values below.
        tail = (1 - confidence) / 2
        low, high = min(_rank(share, least, 1 - tail), least), _rank(share, least, tail)
        return FigureInterval(
            float(ordered[max(0, math.floor(_index(low, least, count)))]),
            float(ordered[min(count - 1, math.ceil(_index(high, least, count)))]),
            best,
        )

    def _tau_at(self, share: float) -> float:
        """Return the correlation time that counts for a percentile."""
        if is_constant(self._values):
            return 1.0
        each = {share, _within(share, len(self._values))}
        return max(self.dependence.of_share(self._at_most(share), share) for share in each)

    def _at_most(self, share: float) -> Values:
        """Return 1 for each value that is at or below a quantile, and 0 for the others."""
        estimate = self._ordered[min(len(self._ordered) - 1, int(share * len(self._ordered)))]
        below: Values = (self._values <= estimate).astype(np.float64)
        return below


def _within(share: float, count: int) -> float:
    """Return the nearest share with enough values on both sides."""
    beyond = min(0.5, _MIN_BEYOND / count)
    return min(max(share, beyond), 1 - beyond)


def needed_for(percent: float, confidence: float = CONFIDENCE) -> int:
    """Return how many independent values the interval of a percentile needs."""
    share = max(percent, 100 - percent) / 100
    return math.ceil(math.log((1 - confidence) / 2) / math.log(share))


def share_interval(
    happened: Values,
    in_flight: InFlight | None = None,
    latencies: Dependence | None = None,
    confidence: float = CONFIDENCE,
) -> FigureInterval:
    """Return the interval of the share of ones in a series of zeros and ones, in the order of the starts.

    `latencies` are those of the requests, if what happened depends on them: they tell their correlation time even if all
    of the requests, or none, met an objective.
    """
    count = len(happened)
    if not count:
        return _too_few(0)
    dependence = latencies or Dependence(happened, in_flight)
    tau = _tau_of_share(happened, dependence, latencies)
    rare = float(min(happened.sum(), count - happened.sum()))
    alike = latencies is None and not rare
    if tau > 1 and not dependence.is_known and not alike:
        return _correlated(dependence, tau)
    # Without latencies, only what happened tells the correlation time: as well as it has bursts.
    times = dependence.times if alike or latencies else rare / tau
    return FigureInterval(*_share_bounds(happened, tau, times, confidence), count / tau)


def miss_bounds(missed: Values, latencies: Dependence, confidence: float) -> tuple[float, float]:
    """Return bounds of the share of requests that miss an objective. The upper one is 1 if the run is too short to tell.

    The lower bound needs no raised correlation time: a run that underestimates it has met little congestion, and few misses.
    """
    tau = _tau_of_share(missed, latencies, latencies)
    high = _share_bounds(missed, tau, latencies.times, confidence)[1] if latencies.is_known else 1.0
    least = len(missed) / max(latencies.plain_load, correlation_time(missed, horizon=latencies.in_flight.horizon))
    return clopper_pearson(float(missed.mean()) * least, least, confidence)[0], high


def _tau_of_share(happened: Values, dependence: Dependence, latencies: Dependence | None) -> float:
    count, share = len(happened), float(happened.mean())
    if latencies is None and not 0 < share < 1:
        return float(max(_BURST, dependence.in_flight.typical))
    if count < _MIN_VALUES:
        return 1.0
    return dependence.of_mean if latencies is None else latencies.of_share(happened, _within(share, count))


def _share_bounds(happened: Values, tau: float, times: float, confidence: float) -> tuple[float, float]:
    least = len(happened) / tau
    if tau > 1:
        least /= _widening(times, confidence)
    return clopper_pearson(float(happened.mean()) * least, least, confidence)


def product_interval(rates: FigureInterval, shares: FigureInterval) -> FigureInterval:
    """Return the interval of a rate of which a share counts, such as goodput. The errors add up, because in a closed loop
    requests that take longer lower both."""
    if rates.low is None or rates.high is None or shares.low is None or shares.high is None:
        return rates if rates.low is None else shares
    return FigureInterval(rates.low * shares.low, rates.high * shares.high, shares.effective_count)


def rate_interval(
    ends: Values,
    weights: Values | None,
    in_flight: InFlight | None = None,
    window: tuple[float, float] = (-math.inf, math.inf),
    *,
    from_empty: bool = True,
    confidence: float = CONFIDENCE,
) -> FigureInterval:
    """Return the interval of the rate at which requests end, per unit of time. They are in the order of their starts.

    `weights` are what each request counts. `window` is the time in which ends count: after the last start, the load falls.
    `from_empty` says that the load rises at first, so that the first requests that end do not count. The times of groups of
    requests give the interval. A group has as many requests as are in flight at most, because requests in lockstep end
    together, one round after the other; several times as many, if there are many rounds.
    """
    order = np.argsort(ends, kind="stable")
    times = ends[order]
    ramp, size = (0, 1) if in_flight is None else (in_flight.typical, in_flight.largest)
    first = max(ramp if from_empty else 0, int(np.searchsorted(times, window[0])))
    last = min(len(times) - 1, int(np.searchsorted(times, window[1], side="right")))
    if last - first < _MIN_VALUES:
        return _too_few(max(0, last - first))
    rounds = (last - first - size // 2) // size
    if rounds < _MIN_ROUNDS:
        size = max(1, (last - first) // _MIN_VALUES)
    else:
        # Rounds are counted from median to median: the first request of a round is ahead of the others more and more.
        first += size // 2
        size *= -(-rounds // _MAX_GROUPS)
    groups = (last - first) // size
    spans = np.diff(times[first : first + groups * size + 1 : size])
    amounts = np.full(groups, float(size))
    floor = 0.0
    if weights is not None:
        amounts = weights[order][first + 1 : first + 1 + groups * size].reshape(groups, size).sum(axis=1)
        if not is_constant(weights):
            dependence = Dependence(weights, in_flight)
            if not dependence.is_known:
                return _correlated(dependence, dependence.of_mean)
            floor = float(weights.var()) * dependence.of_mean * size
    return _ratio(amounts, spans, floor, confidence)


def _ratio(amounts: Values, spans: Values, floor: float, confidence: float) -> FigureInterval:
    """Return the interval of the ratio of two sums over groups (Fieller). `floor` is the least variance of the amounts of a
    group, because they are correlated over longer times."""
    groups, mean, span = len(spans), float(amounts.mean()), float(spans.mean())
    if mean <= 0 or span <= 0:
        return FigureInterval(0.0, 0.0, float(groups)) if span > 0 else _too_few(0)
    tau = correlation_time(amounts - mean / span * spans) if groups >= 2 * _MIN_GROUPS else 1.0
    if tau > 1:
        tau *= 1 + 3 / math.sqrt(groups / tau)
    if tau * _MIN_GROUPS > groups and tau > 1:
        return FigureInterval(effective_count=groups / tau, note="the rate follows a trend through the whole run")
    of_amounts, of_spans = max(float(amounts.var(ddof=1)), floor), float(spans.var(ddof=1))
    both = float(np.cov(amounts, spans)[0, 1])
    factor = _student(groups / tau - 1, confidence) ** 2 * tau / groups
    # The ratios r for which (mean - r span)² is at most factor times the variance of amount - r span.
    a, b, c = span * span - factor * of_spans, mean * span - factor * both, mean * mean - factor * of_amounts
    root = b * b - a * c
    if a <= 0 or root < 0:
        return FigureInterval(effective_count=groups / tau, note="the times between requests vary too much")
    return FigureInterval(max(0.0, (b - math.sqrt(root)) / a), (b + math.sqrt(root)) / a, groups / tau)


def clopper_pearson(successes: float, count: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact bounds of a probability. The counts need not be whole."""
    tail = (1 - confidence) / 2
    failures = count - successes
    low = 0.0 if successes <= 0 else beta_quantile(tail, successes, failures + 1)
    high = 1.0 if failures <= 0 else beta_quantile(1 - tail, successes + 1, failures)
    return low, high


@lru_cache
def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return where the distribution function of the beta distribution has this value, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-12 * high and high > 1e-15:
        middle = (low + high) / 2
        if regularised_beta(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def regularised_beta(x: float, a: float, b: float) -> float:
    """Return the distribution function of the beta distribution at x, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - regularised_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    tiny = 1e-300
    fraction, numerator, denominator = 1.0, 1.0, 0.0
    for i in range(10_000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        denominator = 1 + term * denominator
        denominator = 1 / (denominator if abs(denominator) > tiny else tiny)
        numerator = 1 + term / numerator
        numerator = numerator if abs(numerator) > tiny else tiny
        step = numerator * denominator
        fraction *= step
        if abs(step - 1) < 1e-14:
            break
    return front * (fraction - 1)


def _index(rank: float, effective: float, count: int) -> float:
    """Return the index among `count` values that corresponds to a rank among `effective` ones."""
    return (rank - 0.5) / effective * count - 0.5


@lru_cache
def _rank(share: float, count: float, probability: float) -> float:
    """Return the k for which P(X >= k) is this probability, for a binomial X of `count` trials."""
    if regularised_beta(share, count, 1) > probability:  # even P(X = count) is larger
        return count + 1
    spread = math.sqrt(share * (1 - share) * count)
    low, high = max(0.0, share * count - 9 * spread - 3), min(count, share * count + 9 * spread + 3)
    while high - low > max(0.01, spread / 1000):
        middle = (low + high) / 2
        if regularised_beta(share, middle, count - middle + 1) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _skewness(values: Values) -> float:
    mean = float(values.mean())
    return _central_moment(values, mean, 3) / math.pow(_central_moment(values, mean, 2), 1.5)


def _central_moment(values: Values, mean: float, power: int) -> float:
    """Return the mean of a power of the deviations, with little memory for millions of values."""
    parts = (values[first : first + _PART] - mean for first in range(0, len(values), _PART))
    return math.fsum(float(reduce(np.multiply, [part] * power).sum()) for part in parts) / len(values)


def _hall(t: float, skewness: float) -> float:
    """Return the value of Student's ratio for a mean with this skewness that corresponds to `t` for one without."""
    if abs(skewness) < 1e-6:
        return t
    return 3 / skewness * (math.cbrt(1 + skewness * (t - skewness / 6)) - 1)


@lru_cache
def _critical(degrees: int, confidence: float) -> float:
    return t_critical(degrees, confidence)


def _student(degrees: float, confidence: float) -> float:
    return _critical(max(3, min(int(degrees), _MAX_DEGREES)), confidence)


def _widening(degrees: float, confidence: float) -> float:
    """Return by how much the variance grows because its correlation time is uncertain, as Student's t does for means."""
    return (_student(degrees, confidence) / NormalDist().inv_cdf((1 + confidence) / 2)) ** 2


def _too_few(count: int) -> FigureInterval:
    return FigureInterval(note=f"{_MIN_VALUES} values are needed, and there are {count}")


def _correlated(dependence: Dependence, tau: float, independent: float = MIN_TIMES) -> FigureInterval:
    """Return the missing interval of a run with too few correlation times."""
    note = "the run is too short to tell how far its requests depend on each other"
    if dependence.times < 1:
        note = "the values follow a trend through the whole run"
    return _missing(dependence, tau, max(tau * independent, dependence.count / dependence.times * MIN_TIMES), note)


def _missing(dependence: Dependence, tau: float, needed: float, note: str) -> FigureInterval:
    advice = f"{'about' if dependence.is_known else 'more than'} {_rounded(needed):,} requests"
    return FigureInterval(effective_count=dependence.count / tau, advice=advice, note=f"{note}; {advice} would do")


def _rounded(count: float) -> int:
    """Return a number of requests with two digits."""
    return math.ceil(float(f"{count:.2g}"))

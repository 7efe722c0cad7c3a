"""The search for the largest load under which a server meets its service level objectives. Nothing here sends requests.

Each objective is a share of requests that must meet a limit: `p99 time_to_first_token<300` allows one miss in a hundred. While
the search narrows the range of loads, a sequential probability ratio test decides between half and twice the allowed share of
misses, so a load that is far from the limit is decided by few requests. Requests that overlap meet the same queue, so each
round of them can move the test by at most half of the way to a decision. The answer rests on the last visits of both ends of
the range: there, the confidence interval of the share of misses, which respects that requests depend on each other,
must exclude the allowed share. A load for which the requests do not suffice stays undecided, and the answer becomes wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.conditions import Condition, parse_condition
from penstock.metrics.dependence import Dependence, InFlight, requests_in_flight
from penstock.metrics.intervals import clopper_pearson, miss_bounds
from penstock.metrics.statistics import Values
from penstock.metrics.trend import kendall

ERROR_RATE = "request_error_rate"
_ERROR = 0.02
"""Probability that the test of a load decides wrongly, if the load is not close to the limit."""
_TOLERANCE = 0.1
"""The search ends when the interval is not longer than this share of its lower end."""
_FIRST_LOOK = 20
"""While the load still doubles, it passes after this many requests without a miss."""
_STEP = 0.05
"""Distance, relative to the load, of the loads that are tried beside one that stays undecided."""
_LAST_ROUNDS, _LAST_REQUESTS, _LAST_CONFIDENCE = 10, 250, 0.92
"""The last visit of a load takes so many rounds of requests that overlap, or so many requests, until the interval of the share
of misses does not contain the allowed one: each bound is exceeded in 4 % of the visits. The lengths of queues change slowly, so
the few requests of a sequential test may all meet a queue that happens to be short: without the last visit, a load at which
15 % of the requests miss a p90 passes in half of the searches."""
_EARLIER_LOOK = 0.6
_MAX_REQUESTS, _MAX_REQUESTS_OF_TAIL, _TAIL = 5_000, 10_000, 0.05
"""A load that is not decided ends after so many requests; after more, if the objective allows a smaller share of misses."""
_MAX_FACTOR, _MIN_REQUESTS = 4, 500
"""Before the last visit, it ends after this many times the requests of a load without a miss, and this many requests."""
_GROWTH, _GROWTH_BATCHES, _GROWTH_TREND = 2.5, 20, 0.5
"""Completions fall behind if the number in flight grows by more than this many standard deviations of arrivals and
completions, and steadily: Kendall's rank correlation of the means of so many batches with time."""

_MAX_VISITS = 5
"""Visits of the lowest load, while each of them is better than the one before."""

Decision = Literal["pass", "fail"]
Visit = Literal["first look", "test", "last"]
"""How thoroughly a load is tested."""


class Slo(NamedTuple):
    text: str
    metric: str
    limit: float
    at_least: bool
    """True if the values have to be above the limit."""
    share: float
    """Share of the requests that have to meet the limit."""
    inclusive: bool = False
    """True if a value at the limit meets it."""

    @property
    def allowed(self) -> float:
        """Share of the requests that may miss the limit."""
        return 1 - self.share

    def value(self, values: Mapping[str, float] | None) -> float:
        """Return the value that is judged for a request with these metrics: infinitely bad for None, a failed request."""
        worst = -math.inf if self.at_least else math.inf
        if values is None:
            return worst
        return 0.0 if self.metric == ERROR_RATE else values.get(self.metric, worst)

    def is_met(self, values: Mapping[str, float] | None) -> bool:
        """Return whether a request with these metrics meets the objective; None stands for a failed request."""
        value = self.value(values)
        if value == self.limit:
            return self.inclusive
        return value > self.limit if self.at_least else value < self.limit

    def observed(self, values: Sequence[float]) -> float:
        """Return the figure that the objective limits, over the values of requests."""
        if self.metric == ERROR_RATE:
            return 100 * sum(map(math.isinf, values)) / len(values)
        share = 1 - self.share if self.at_least else self.share
        return float(np.quantile(values, share, method="inverted_cdf"))


def parse_slo(text: str, flag: str = "--slo") -> Slo:
    """Return the objective in a text such as `p99 time_to_first_token<300`; raise `UserError`."""
    condition = parse_condition(flag, text, example="p99 time_to_first_token<300", any_percentile=True)
    if condition.metric == ERROR_RATE and not condition.operator.startswith(">") and 0 < condition.limit < 100:
        return Slo(text.strip(), ERROR_RATE, condition.limit, False, 1 - condition.limit / 100)
    at_least, inclusive = condition.operator.startswith(">"), condition.operator.endswith("=")
    return Slo(text.strip(), condition.metric, condition.limit, at_least, _share(condition, flag), inclusive)


def _share(condition: Condition, flag: str) -> float:
    percentile = condition.statistic.removeprefix("p")
    if CATALOGUE[condition.metric].kind != "record" or not percentile.replace(".", "").isdigit():
        raise UserError(
            f"{condition.text}: {flag} takes a percentile of a metric of single requests, like 'p99 time_to_first_token<300', "
            "or 'request_error_rate<1' (in percent)."
        )
    share = float(percentile) / 100
    return 1 - share if condition.operator.startswith(">") else share


class Outcome(NamedTuple):
    """A request that has ended."""

    start: int
    end: int
    met: tuple[bool, ...]
    """For each objective, whether the request met it."""
    values: tuple[float, ...] = ()
    """For each objective, the value that it judges."""
    worker: int = 0
    issued: int = 0


class ObjectiveTest:
    """Decides whether a load meets all objectives."""

    def __init__(self, slos: Sequence[Slo], limit: int | None = None, *, open_loop: bool = False) -> None:
        """`limit` is the number of requests after which an undecided load ends. In an open loop, a load at which completions
        fall behind arrivals fails."""
        self._slos = slos
        self._bound = math.log((1 - _ERROR) / _ERROR)
        self._steps = [_steps(slo.allowed) for slo in slos]
        self._limit = limit
        self._open_loop = open_loop

    @property
    def requests_to_pass(self) -> int:
        """Requests without a miss after which a load passes."""
        return max(math.ceil(-self._bound / met) for _, met in self._steps)

    @property
    def max_requests(self) -> int:
        """Requests after which the last visit of a load that is not decided ends."""
        if self._limit is not None:
            return self._limit
        least = _MAX_REQUESTS_OF_TAIL if min(slo.allowed for slo in self._slos) < _TAIL else _MAX_REQUESTS
        return max(least, _MAX_FACTOR * self.requests_to_pass)

    def most_requests(self, visit: Visit) -> int:
        """Return the number of requests after which a visit ends that does not decide."""
        quick = max(_MIN_REQUESTS, _MAX_FACTOR * self.requests_to_pass)
        return self.max_requests if visit == "last" else min(quick, self.max_requests)

    def decide(self, outcomes: Sequence[Outcome], visit: Visit = "test") -> Decision | None:
        """Return the decision; None if there are too few requests. The outcomes are in the order of their starts."""
        rounds = _rounds(outcomes)
        if self._open_loop and _falls_behind(outcomes):
            return "fail"
        if visit == "last":
            if len(rounds) < _LAST_ROUNDS and len(outcomes) < _LAST_REQUESTS:
                return None
            # Each look may be wrong by chance, so two must agree.
            decision = self._by_interval(outcomes)
            agrees = decision is None or self._by_interval(outcomes[: round(_EARLIER_LOOK * len(outcomes))]) == decision
            return decision if agrees else None
        scores = [0.0] * len(self._slos)
        passed = [False] * len(self._slos)
        for each in rounds:
            for i, (missed_step, met_step) in enumerate(self._steps):
                misses = sum(not outcome.met[i] for outcome in each)
                score = misses * missed_step + (len(each) - misses) * met_step
                # Not below the bound: what follows a pass counts as much as what came before it.
                scores[i] = max(scores[i] + min(max(score, -self._bound / 2), self._bound / 2), -self._bound)
                if scores[i] >= self._bound:
                    return "fail"
                passed[i] |= scores[i] <= -self._bound
        if all(passed) and max(scores) <= 0:
            return "pass"
        clean = visit == "first look" and all(all(outcome.met) for each in rounds for outcome in each)
        return "pass" if clean and sum(map(len, rounds)) >= _FIRST_LOOK else None

    def _by_interval(self, outcomes: Sequence[Outcome]) -> Decision | None:
        starts, ends = _times(outcomes)
        latencies = Dependence(ends - starts, InFlight(requests_in_flight(starts, ends)))
        passed = True
        for i, slo in enumerate(self._slos):
            missed = np.fromiter((not outcome.met[i] for outcome in outcomes), np.float64, len(outcomes))
            low, high = miss_bounds(missed, latencies, _LAST_CONFIDENCE)
            if low > slo.allowed:
                return "fail"
            passed &= high < slo.allowed
        return "pass" if passed else None


def _times(outcomes: Sequence[Outcome]) -> tuple[Values, Values]:
    times = np.array([(outcome.start, outcome.end) for outcome in outcomes], np.float64) - outcomes[0].start
    return times[:, 0], times[:, 1]


def _falls_behind(outcomes: Sequence[Outcome]) -> bool:
    """Return whether the number in flight grows as in a queue that never ends, and by more than chance."""
    if len(outcomes) < 4 * _GROWTH_BATCHES:
        return False
    starts, ends = _times(outcomes)
    counts = requests_in_flight(starts, ends)
    # The number in flight rises at first in every load that begins with an empty server.
    counts = counts[len(counts) // _GROWTH_BATCHES :]
    edges = np.linspace(0, len(counts), _GROWTH_BATCHES + 1).astype(np.int64)
    means = np.add.reduceat(counts, edges[:-1]) / np.diff(edges)
    growth = float(means[-3:].mean() - means[:3].mean())
    deviation = math.sqrt(len(counts) * (_dispersion(starts) + _dispersion(np.sort(ends)[: len(counts)])))
    return growth > max(3.0, _GROWTH * deviation, 0.5 * means[:3].mean()) and kendall(means) > _GROWTH_TREND


def _dispersion(times: Values) -> float:
    """Return the variance of the number of events in a time, relative to their mean number: 1 for a Poisson process."""
    size = max(1, len(times) // (2 * _GROWTH_BATCHES))
    spans = np.diff(times[::size])
    return size * float(spans.var()) / float(spans.mean()) ** 2 if spans.mean() > 0 else 0.0


def _steps(allowed: float) -> tuple[float, float]:
    """Return what a miss and a met objective add to the logarithm of the likelihood ratio."""
    few, many = allowed / 2, min(2 * allowed, (1 + allowed) / 2)
    return math.log(many / few), math.log((1 - many) / (1 - few))


def _rounds(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Group requests that overlap: a round ends when its first request has ended."""
    rounds: list[list[Outcome]] = []
    end = -1
    for outcome in outcomes:
        if outcome.start >= end:
            rounds.append([])
            end = outcome.end
        rounds[-1].append(outcome)
    return rounds


class LoadResult(msgspec.Struct, frozen=True):
    """What was observed at one load, in the visit that decided."""

    value: float
    requests: int
    """Requests that were judged."""
    misses: tuple[int, ...]
    """For each objective, the requests that missed it."""
    decision: Decision | None
    """None if the requests did not suffice."""
    is_final: bool = False
    """True after the last visit."""
    unclear: int = 0
    """Requests that were not judged, because the client may have caused the miss."""
    observed: tuple[float, ...] = ()
    """For each objective, the figure that it limits."""
    requests_before: int = 0
    """Requests that earlier visits judged."""
    changed: bool = False
    """An earlier visit decided differently, and by more than chance."""

    def after(self, earlier: LoadResult) -> LoadResult:
        """Return this visit after an earlier one of the same load."""
        differ = {self.decision, earlier.decision} == {"pass", "fail"}
        changed = earlier.changed or (differ and any(map(_differ, self._shares(), earlier._shares())))
        return replace(self, requests_before=earlier.requests_before + earlier.requests, changed=changed)

    def _shares(self) -> list[tuple[float, float]]:
        """Return bounds of the shares of misses. Requests that overlap depend on each other; up to ten count as one."""
        size = min(10, max(1, self.value))
        return [
            clopper_pearson(misses / size, max(1, self.requests) / size, _LAST_CONFIDENCE) for misses in self.misses
        ]


def _differ(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] > b[1] or b[0] > a[1]


class Limit(msgspec.Struct, frozen=True):
    """The largest load that meets the objectives."""

    estimate: float
    """Where the monotone fit reaches the allowed share of misses."""
    low: float
    """The highest load that passed."""
    high: float | None
    """The lowest load that failed; None if none did."""


class SearchResult(msgspec.Struct, frozen=True):
    loads: list[LoadResult]
    """In the order of the load."""
    limit: Limit | None
    """None if no load passed."""
    fitted: list[tuple[float, ...]]
    """For each load, the monotone fit of the share of misses of each objective."""


class SearchOutcome(NamedTuple):
    """A search that has ended, and what was searched."""

    parameter: str
    """`concurrency` or `request_rate`."""
    slos: tuple[Slo, ...]
    result: SearchResult
    certificates: Mapping[float, str] = {}
    """By load, the verdict on the visit that decided: whether the client distorted its figures."""


class CapacitySearch:
    """Chooses the loads to measure: doubles the load until one fails, halves the interval, and then visits its ends
    again. Beside an end that stays undecided, it tries others, step by step."""

    def __init__(self, slos: Sequence[Slo], minimum: float, maximum: float, *, whole: bool) -> None:
        """`whole` says that loads are whole numbers."""
        self._slos = slos
        self._whole = whole
        self._minimum, self._maximum = minimum, maximum
        self._loads: dict[float, LoadResult] = {}
        self._visits = 0
        """Visits of the lowest load."""
        self._is_improving = False

    def add(self, load: LoadResult) -> None:
        before = self._loads.get(load.value)
        if load.value == self._minimum:
            self._visits += 1
            # A server that warms up answers faster at each visit.
            self._is_improving = before is not None and _improves(before, load)
        self._loads[load.value] = load if before is None else load.after(before)

    def visit(self, value: float) -> Visit:
        """Return how to visit a load: with a first look while loads still double."""
        if value in self._loads or self._has_undecided_end():
            return "last"
        return "first look" if all(map(self.passes, self._loads.values())) else "test"

    def next(self) -> float | None:
        """Return the next load to measure; None at the end of the search."""
        low, high = self._interval(decided=False)
        if low is None:
            lowest = self._loads.get(self._minimum)
            again = lowest is None or not lowest.is_final or (self._is_improving and self._visits < _MAX_VISITS)
            return self._minimum if again else self._refinement()
        if high is None:
            if low < self._maximum:
                return min(self._maximum, self._rounded(2 * low))
            return self._refinement() if self._loads[low].is_final else low
        narrow = self._is_narrow(low, high) or self._has_undecided_end()
        if not narrow and (middle := self._between(low, high)) is not None:
            return middle
        for end in (low, high):
            if not self._loads[end].is_final:
                return end
        return self._refinement()

    def _has_undecided_end(self) -> bool:
        return any(load.is_final and load.decision is None for load in self._loads.values())

    def result(self) -> SearchResult:
        loads = [self._loads[value] for value in sorted(self._loads)]
        fits = [
            isotonic([load.misses[i] / max(1, load.requests) for load in loads], [load.requests for load in loads])
            for i in range(len(self._slos))
        ]
        low, high = self._interval(decided=True)
        limit = None
        if low is not None and high is None:  # a search that was interrupted
            high = min((load.value for load in loads if load.decision == "fail" and load.value > low), default=None)
        if low is not None:
            crossings = [
                _crossing([load.value for load in loads], fit, slo.allowed)
                for fit, slo in zip(fits, self._slos, strict=True)
            ]
            estimate = max(low, min(crossings))
            limit = Limit(estimate if high is None else min(estimate, high), low, high)
        return SearchResult(loads, limit, list(zip(*fits, strict=True)))

    def passes(self, load: LoadResult) -> bool:
        """Return the decision, or for an undecided load that of its share of misses."""
        if load.decision is not None:
            return load.decision == "pass"
        return all(misses <= slo.allowed * load.requests for misses, slo in zip(load.misses, self._slos, strict=True))

    def _interval(self, *, decided: bool) -> tuple[float | None, float | None]:
        """Return the highest load that passes below the lowest one that fails, and that one. `decided` leaves out loads
        without a decision and, after a last visit, those without one."""
        loads = [load for load in self._loads.values() if not decided or load.decision is not None]
        if decided and any(load.is_final for load in self._loads.values()):
            loads = [load for load in loads if load.is_final]
        high = min((load.value for load in loads if not self.passes(load)), default=None)
        passing = [load.value for load in loads if self.passes(load) and (high is None or load.value < high)]
        return max(passing, default=None), high

    def _is_narrow(self, low: float, high: float) -> bool:
        return high - low <= max(1.0 if self._whole else 0.0, _TOLERANCE * low)

    def _between(self, low: float, high: float) -> float | None:
        middle = self._rounded((low + high) / 2)
        return None if middle in self._loads or not low < middle < high else middle

    def _refinement(self) -> float | None:
        """Return a load next to the undecided ones, below them and then above them, or a decided end without a last visit."""
        low, high = self._interval(decided=True)
        undecided = [
            value
            for value, load in self._loads.items()
            if load.is_final and load.decision is None and (high is None or value < high)
        ]
        first = min(undecided, default=high)
        if first is not None and first > self._minimum and (low is None or not self._is_next(low, first)):
            return self._step(first / (1 + _STEP), low, first)
        last = max(undecided, default=low)
        if last is not None and last < self._maximum and (high is None or not self._is_next(last, high)):
            return self._step(last * (1 + _STEP), last, high)
        return None

    def _is_next(self, low: float, high: float) -> bool:
        """Return whether two loads are so close that a load between them is not worth a visit."""
        return high - low <= max(1.0 if self._whole else 0.0, 1.01 * _TOLERANCE * low)

    def _step(self, value: float, above: float | None, below: float | None) -> float | None:
        """Return a load near a value, within the range and strictly between two loads; None if there is none."""
        value = min(max(self._rounded(value), self._minimum), self._maximum)
        if self._whole:
            value = max(value, -math.inf if above is None else above + 1)
            value = min(value, math.inf if below is None else below - 1)
        inside = (above is None or value > above) and (below is None or value < below)
        load = self._loads.get(value)
        return value if inside and (load is None or not load.is_final) else None

    def _rounded(self, value: float) -> float:
        return math.floor(value) if self._whole else float(f"{value:.3g}")


def _improves(before: LoadResult, after: LoadResult) -> bool:
    """Return whether the share of misses of a failed load falls clearly from one visit to the next."""
    pairs = zip(before.misses, after.misses, strict=True)
    return any(b / max(1, after.requests) < 0.8 * a / max(1, before.requests) for a, b in pairs)


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the nearest sequence that never falls (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, max(weight, 1e-9), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [value for value, _, count in blocks for _ in range(count)]


def _crossing(loads: Sequence[float], fit: Sequence[float], allowed: float) -> float:
    """Return where the fit exceeds the allowed share, by linear interpolation; the last load if it never does."""
    for i, share in enumerate(fit):
        if share > allowed:
            if not i:
                return loads[0]
            part = (allowed - fit[i - 1]) / (share - fit[i - 1])
            return loads[i - 1] + part * (loads[i] - loads[i - 1])
    return loads[-1]

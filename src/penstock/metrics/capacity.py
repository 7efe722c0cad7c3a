"""The search for the largest load under which a server meets its service level objectives. Nothing here sends requests.

Each objective is a share of requests that must meet a limit: `p99 time_to_first_token<300` allows one miss in a hundred. At
each level of load, a sequential probability ratio test decides between half and twice the allowed share of misses, so a level
that is far from the limit is decided by few requests. Requests that overlap meet the same queue, so each round of them can move
the test by at most half of the way to a decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.conditions import Condition, parse_condition
from penstock.metrics.intervals import share_interval

__all__ = [
    "ERROR_RATE",
    "CapacitySearch",
    "Decision",
    "Level",
    "LevelTest",
    "Limit",
    "Outcome",
    "SearchOutcome",
    "SearchResult",
    "Slo",
    "Visit",
    "isotonic",
    "parse_slo",
]

ERROR_RATE = "request_error_rate"
_ERROR = 0.02
"""Probability that the test of a level decides wrongly, if the level is not close to the limit."""
_TOLERANCE = 0.1
"""The search ends when the interval is not longer than this share of its lower end."""
_FIRST_LOOK = 20
"""While the load still doubles, a level passes after this many requests without a miss."""
_LAST_ROUNDS, _LAST_REQUESTS, _LAST_LEVEL = 10, 250, 0.98
"""The last visit of a level takes so many rounds of requests that overlap, or so many requests, until an interval of this level
for the share of misses does not contain the allowed one. The lengths of queues change slowly, so the few requests of a
sequential test may all meet a queue that happens to be short: without the last visit, a level at which 15 % of the requests
miss a p90 passes in half of the searches. The sequential test of a p99 takes as many requests by itself."""
_MAX_FACTOR, _MIN_REQUESTS = 4, 500
"""A level that is not decided ends after this many times the requests of a level without a miss, and this many requests."""

Decision = Literal["pass", "fail"]
Visit = Literal["first look", "test", "last"]
"""How thoroughly a level is tested."""


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


class LevelTest:
    """Decides whether a level meets all objectives."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self._bound = math.log((1 - _ERROR) / _ERROR)
        self._steps = [_steps(slo.allowed) for slo in slos]

    @property
    def requests_to_pass(self) -> int:
        """Requests without a miss after which a level passes."""
        return max(math.ceil(-self._bound / met) for _, met in self._steps)

    @property
    def max_requests(self) -> int:
        """Requests after which a level that is not decided is close to the limit."""
        return max(_MIN_REQUESTS, _MAX_FACTOR * self.requests_to_pass)

    def is_exhausted(self, outcomes: Sequence[Outcome]) -> bool:
        """Return whether more requests of a level that is not decided would hardly help."""
        return len(outcomes) >= self.max_requests and len(_rounds(outcomes)) >= _LAST_ROUNDS

    def decide(self, outcomes: Iterable[Outcome], visit: Visit = "test") -> Decision | None:
        """Return the decision; None if there are too few requests. The outcomes are in the order of their starts."""
        rounds = _rounds(outcomes)
        if visit == "last" and self.requests_to_pass < _LAST_REQUESTS:
            return self._decide_at_last(rounds)
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

    def _decide_at_last(self, rounds: list[list[Outcome]]) -> Decision | None:
        count = sum(map(len, rounds))
        if len(rounds) < _LAST_ROUNDS and count < _LAST_REQUESTS:
            return None
        passed = True
        for i, slo in enumerate(self._slos):
            missed = (not outcome.met[i] for each in rounds for outcome in each)
            share = share_interval(np.fromiter(missed, np.float64, count), confidence=_LAST_LEVEL)
            if share.low is not None and share.low > slo.allowed:
                return "fail"
            passed &= share.high is not None and share.high < slo.allowed
        return "pass" if passed else None


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


class Level(msgspec.Struct, frozen=True):
    """What was observed at a level of load."""

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

    def combined(self, other: Level) -> Level:
        """Return both visits of a level; the later one decides."""
        misses = tuple(a + b for a, b in zip(self.misses, other.misses, strict=True))
        unclear = self.unclear + other.unclear
        requests = self.requests + other.requests
        return Level(self.value, requests, misses, other.decision, other.is_final, unclear, other.observed)


class Limit(msgspec.Struct, frozen=True):
    """The largest load that meets the objectives."""

    estimate: float
    """Where the monotone fit reaches the allowed share of misses."""
    low: float
    """The highest level that passed."""
    high: float | None
    """The lowest level that failed; None if none did."""


class SearchResult(msgspec.Struct, frozen=True):
    levels: list[Level]
    """In the order of the load."""
    limit: Limit | None
    """None if no level passed."""
    fitted: list[tuple[float, ...]]
    """For each level, the monotone fit of the share of misses of each objective."""


class SearchOutcome(NamedTuple):
    """A search that has ended, and what was searched."""

    parameter: str
    """`concurrency` or `request_rate`."""
    slos: tuple[Slo, ...]
    result: SearchResult


class CapacitySearch:
    """Chooses the levels to measure: doubles the load until a level fails, halves the interval, and then visits its ends
    again."""

    def __init__(self, slos: Sequence[Slo], minimum: float, maximum: float, *, whole: bool) -> None:
        """`whole` says that levels are whole numbers."""
        self._slos = slos
        self._whole = whole
        self._minimum, self._maximum = minimum, maximum
        self._levels: dict[float, Level] = {}

    def add(self, level: Level) -> None:
        before = self._levels.get(level.value)
        self._levels[level.value] = level if before is None else before.combined(level)

    def visit(self, value: float) -> Visit:
        """Return how to visit a level: with a first look while the load still doubles."""
        if value in self._levels:
            return "last"
        return "first look" if all(map(self.passes, self._levels.values())) else "test"

    def next(self) -> float | None:
        """Return the next level to measure; None at the end of the search."""
        low, high = self._interval(decided=False)
        if low is None:
            lowest = self._levels.get(self._minimum)
            return self._minimum if lowest is None or not lowest.is_final else None
        if high is None:
            if low < self._maximum:
                return min(self._maximum, self._rounded(2 * low))
            return None if self._levels[low].is_final else low
        if not self._is_narrow(low, high):
            return self._between(low, high)
        for end in (low, high):
            if not self._levels[end].is_final:
                return end
        return self._refinement()

    def result(self) -> SearchResult:
        levels = [self._levels[value] for value in sorted(self._levels)]
        fits = [
            isotonic(
                [level.misses[i] / max(1, level.requests) for level in levels], [level.requests for level in levels]
            )
            for i in range(len(self._slos))
        ]
        low, high = self._interval(decided=True)
        limit = None
        if low is not None:
            crossings = [
                _crossing([level.value for level in levels], fit, slo.allowed)
                for fit, slo in zip(fits, self._slos, strict=True)
            ]
            estimate = max(low, min(crossings))
            limit = Limit(estimate if high is None else min(estimate, high), low, high)
        return SearchResult(levels, limit, list(zip(*fits, strict=True)))

    def passes(self, level: Level) -> bool:
        """Return the decision, or for an undecided level that of its share of misses."""
        if level.decision is not None:
            return level.decision == "pass"
        return all(misses <= slo.allowed * level.requests for misses, slo in zip(level.misses, self._slos, strict=True))

    def _interval(self, *, decided: bool) -> tuple[float | None, float | None]:
        """Return the highest level that passes below the lowest one that fails, and that one."""
        levels = [level for level in self._levels.values() if not decided or level.decision is not None]
        high = min((level.value for level in levels if not self.passes(level)), default=None)
        passing = [level.value for level in levels if self.passes(level) and (high is None or level.value < high)]
        return max(passing, default=None), high

    def _is_narrow(self, low: float, high: float) -> bool:
        return high - low <= max(1.0 if self._whole else 0.0, _TOLERANCE * low)

    def _between(self, low: float, high: float) -> float | None:
        middle = self._rounded((low + high) / 2)
        return None if middle in self._levels or not low < middle < high else middle

    def _refinement(self) -> float | None:
        """Return a level that can narrow the interval around an undecided level."""
        low, high = self._interval(decided=True)
        if low is None or high is None or high - low <= 2 * _TOLERANCE * low:
            return None
        undecided = [v for v, level in self._levels.items() if level.decision is None and low < v < high]
        if not undecided:
            return None
        return self._between(low, min(undecided)) or self._between(max(undecided), high)

    def _rounded(self, value: float) -> float:
        return math.floor(value) if self._whole else float(f"{value:.3g}")


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the nearest sequence that never falls (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, max(weight, 1e-9), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [value for value, _, count in blocks for _ in range(count)]


def _crossing(levels: Sequence[float], fit: Sequence[float], allowed: float) -> float:
    """Return where the fit exceeds the allowed share, by linear interpolation; the last level if it never does."""
    for i, share in enumerate(fit):
        if share > allowed:
            if not i:
                return levels[0]
            part = (allowed - fit[i - 1]) / (share - fit[i - 1])
            return levels[i - 1] + part * (levels[i] - levels[i - 1])
    return levels[-1]

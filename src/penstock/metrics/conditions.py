"""Conditions on metrics, such as `p99 time_to_first_token<300`, by which a program can judge a run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

import msgspec

from penstock.errors import UserError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.groups.error_adjusted import ADJUSTED
from penstock.metrics.groups.network import ADJUSTED_BY_NETWORK
from penstock.metrics.statistics import PERCENTILES, Stats
from penstock.suggest import did_you_mean

STATISTICS = ("avg", "min", "max", *(f"p{percentile}" for percentile in PERCENTILES), "std", "count")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(
    r"(?:(?P<statistic>[\w.]+)\s+)?(?P<metric>\w+)\s*(?P<operator>[<>]=?)\s*(?P<limit>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
    r"\s*(?P<percent>%?)",
    re.IGNORECASE,
)
_PERCENTILE = re.compile(r"p(?!0+\.?0*$)\d{1,2}(?:\.\d+)?")
_ABBREVIATIONS = {
    "ttft": "time_to_first_token",
    "ttst": "time_to_second_token",
    "itl": "inter_token_latency",
    "tpot": "time_per_output_token",
    "isl": "input_sequence_length",
    "osl": "output_sequence_length",
    "latency": "request_latency",
    "throughput": "request_throughput",
}

_ABSENT_IF_ZERO = ("error_request_count", "cancelled_request_count", "context_overflow_count")
_REPLAY_LAGS = ("replay_server_lag", "replay_client_lag")
_WITH_STATISTICS = (
    "effective_concurrency",
    *_REPLAY_LAGS,
    *ADJUSTED_BY_NETWORK,
    *(f"adj_{metric}" for metric in ADJUSTED),
)
"""Metrics of a run that are more than one number."""


class Condition(msgspec.Struct, frozen=True):
    text: str
    """The condition as the user wrote it, with its flag, for messages."""
    statistic: str
    metric: str
    operator: str
    limit: float
    percent: bool = False
    """The limit is a percentage (of a difference)."""

    @property
    def subject(self) -> str:
        return self.metric if _is_single(self.metric) else f"{self.statistic} {self.metric}"

    def holds(self, value: float) -> bool:
        return _OPERATORS[self.operator](value, self.limit)


def parse_assertion(text: str, flag: str = "--assert") -> Condition:
    return parse_condition(flag, text, example="p99 time_to_first_token<300")


def parse_condition(
    flag: str, text: str, *, example: str, percent: bool = False, any_percentile: bool = False
) -> Condition:
    """Parse a condition. With `percent`, the number may have a percent sign; with `any_percentile`, the statistic may also be
    a percentile that is not reported, such as `p99.9`."""
    shown = f"{flag} {text!r}"
    match = _CONDITION.fullmatch(text.strip())
    if match is None or (match["percent"] and not percent):
        number = "a number or a percentage" if percent else "a number without a unit"
        raise UserError(f"{shown} must be a statistic, a metric, a comparison and {number}, like {example!r}.")
    metric = match["metric"].lower()
    check_metric(shown, metric)
    statistic = None if match["statistic"] is None else match["statistic"].lower()
    if (
        statistic is not None
        and statistic not in STATISTICS
        and not (any_percentile and _PERCENTILE.fullmatch(statistic))
    ):
        hint = did_you_mean(statistic, STATISTICS, f"use one of {', '.join(STATISTICS)}.")
        raise UserError(f"{shown}: there is no statistic {statistic}; {hint}")
    if _is_single(metric):
        if statistic not in (None, "avg"):
            raise UserError(f"{shown}: {metric} is a single number, so leave out {statistic}.")
    elif statistic is None:
        raise UserError(f"{shown}: {metric} has many values, so name a statistic, like 'p99 {metric}'.")
    return Condition(
        text=shown,
        statistic=statistic or "avg",
        metric=metric,
        operator=match["operator"],
        limit=float(match["limit"]),
        percent=bool(match["percent"]),
    )


def check_metric(shown: str, metric: str) -> None:
    """Raise UserError if there is no such metric."""
    if metric in CATALOGUE:
        return
    abbreviated = _ABBREVIATIONS.get(metric)
    hint = (
        f"did you mean {abbreviated}?"
        if abbreviated
        else did_you_mean(metric, CATALOGUE, "docs/metrics.md lists all metrics.")
    )
    raise UserError(f"{shown}: there is no metric {metric}; {hint}")


def check_run(condition: Condition, metrics: Mapping[str, Stats]) -> str | None:
    """Return None if the condition holds for the metrics of a run, else a sentence that says why it does not."""
    stats = _stats(condition.metric, metrics)
    value: float | None = None if stats is None else getattr(stats, condition.statistic)
    if stats is None or value is None:
        return f"{condition.text} does not hold: the run has no {condition.subject}."
    if condition.holds(value):
        return None
    unit = "" if condition.statistic == "count" else f" {stats.unit}"
    number = f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{condition.text} does not hold: {condition.subject} is {number}{unit}."


def _stats(metric: str, metrics: Mapping[str, Stats]) -> Stats | None:
    """Return the statistics of a metric, including the metrics that a run without failures omits."""
    stats = metrics.get(metric)
    if stats is None and metric in _ABSENT_IF_ZERO:
        return Stats(CATALOGUE[metric].unit, avg=0.0)
    if stats is None and "error_request_count" not in metrics:
        return metrics.get(metric.removeprefix("adj_"))
    return stats


def _is_single(metric: str) -> bool:
    """True if the metric has one value per run."""
    return CATALOGUE[metric].kind == "run" and metric not in _WITH_STATISTICS

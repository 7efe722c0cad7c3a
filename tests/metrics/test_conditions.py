"""Conditions on metrics: `--assert` and `--fail-if`."""

from __future__ import annotations

import pytest

from penstock.errors import UserError
from penstock.metrics.conditions import Condition, check_run, parse_condition
from penstock.metrics.statistics import Stats

METRICS = {
    "time_to_first_token": Stats("ms", avg=200.0, p99=300.0, min=100.0, count=50),
    "request_throughput": Stats("requests/sec", avg=12.5),
    "adj_request_latency": Stats("ms", p50=80.0),
    "error_request_count": Stats("requests", avg=3.0),
}


def parse(text: str) -> Condition:
    return parse_condition("--assert", text, example="p99 time_to_first_token<300")


@pytest.mark.parametrize(
    "text",
    [
        "p99 time_to_first_token<=300",
        "avg time_to_first_token < 200.1",
        " P99  Time_To_First_Token>=3e2 ",
        "count time_to_first_token>.5",
        "request_throughput>12",
        "avg request_throughput>12",
        "p50 adj_request_latency<81",
    ],
)
def test_condition_that_holds_gives_no_sentence(text: str) -> None:
    assert check_run(parse(text), METRICS) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("p99 time_to_first_token<300", "p99 time_to_first_token is 300 ms"),
        ("count time_to_first_token>50", "count time_to_first_token is 50"),
        ("avg request_throughput>=13", "request_throughput is 12.5 requests/sec"),
        ("p95 time_to_first_token<1", "the run has no p95 time_to_first_token"),
        ("p99 inter_token_latency<1", "the run has no p99 inter_token_latency"),
        ("p99 adj_request_latency<1e9", "the run has no p99 adj_request_latency"),
    ],
)
def test_condition_that_does_not_hold_is_one_sentence(text: str, reason: str) -> None:
    assert check_run(parse(text), METRICS) == f"--assert {text!r} does not hold: {reason}."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("p99 time_to_first_token", "a comparison and a number without a unit, like 'p99 time_to_first_token<300'."),
        ("p99 time_to_first_token<300ms", "must be a statistic, a metric"),
        ("p99 time_to_first_token<5%", "must be a statistic, a metric"),
        ("p99 time_to_first_token==3", "must be a statistic, a metric"),
        ("time_to_first_token<<3", "must be a statistic, a metric"),
        ("", "must be a statistic, a metric"),
        ("p99 time_to_first_tokens<3", "there is no metric time_to_first_tokens; did you mean time_to_first_token?"),
        ("p99 ttft<3", "there is no metric ttft; did you mean time_to_first_token?"),
        ("p99 qqqqqq<3", "there is no metric qqqqqq; docs/metrics.md lists all metrics."),
        ("p98 time_to_first_token<3", "there is no statistic p98; use one of avg, min, max, p1, p5, "),
        ("average time_to_first_token<3", "there is no statistic average; "),
        ("time_to_first_token<3", "has many values, so name a statistic, like 'p99 time_to_first_token'."),
        ("p99 request_throughput>3", "request_throughput is a single number, so leave out p99."),
    ],
)
def test_condition_that_cannot_be_parsed_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    assert str(error.value).startswith(f"--assert {text!r}")
    assert reason in str(error.value)


def test_metrics_that_a_run_without_failures_omits_are_known() -> None:
    metrics = {"request_latency": Stats("ms", p99=5.0), "request_count": Stats("requests", avg=3.0)}
    assert check_run(parse("error_request_count<1"), metrics) is None
    assert check_run(parse("p99 adj_request_latency<=5"), metrics) is None
    assert check_run(parse("error_request_count>=1"), metrics) is not None

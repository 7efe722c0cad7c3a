"""Limits for the difference between two runs."""

from __future__ import annotations

import pytest

from penstock.comparison.compare_pairs import Comparison, Row, Side
from penstock.comparison.fail_if import check_difference, parse_limit
from penstock.errors import UserError


def side(name: str, verdict: str = "VALID") -> Side:
    return Side(name, [], 10, 0, verdict, [], None)


def row(metric: str, statistic: str, a: float, b: float) -> Row:
    percent = 100 * (b - a) / a if a else None
    return Row(metric, metric, "ms", statistic, a, b, b - a, percent, None, None, None, 10, "within noise")


def comparison(verdict: str = "VALID") -> Comparison:
    rows = [
        row("time_to_first_token", "p90", 100.0, 110.0),
        row("request_error_rate", "avg", 0.0, 5.0),
        row("request_throughput", "avg", 50.0, 40.0),
    ]
    return Comparison(side("old"), side("new", verdict), 10, "body", "time_to_first_token", rows, "", [])


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("p90 time_to_first_token>5%", True),
        ("p90 time_to_first_token>10%", False),
        ("p90 time_to_first_token>=10 %", True),
        ("p90 time_to_first_token>9.5", True),
        ("p90 time_to_first_token<0", False),
        ("request_throughput<-5%", True),
        ("request_throughput<-20%", False),
        ("request_throughput<-9.9", True),
        ("avg request_error_rate>100%", True),
    ],
)
def test_difference_is_checked_in_percent_or_absolutely(text: str, fails: bool) -> None:
    assert (check_difference(parse_limit(text), comparison()) is not None) == fails


def test_sentence_gives_the_difference_and_its_verdict() -> None:
    assert check_difference(parse_limit("p90 time_to_first_token>5%"), comparison()) == (
        "--fail-if 'p90 time_to_first_token>5%': p90 time_to_first_token of new differs from that of old by +10.00 ms "
        "(+10.0 %), within noise."
    )


def test_limit_that_cannot_be_checked_fails() -> None:
    missing = check_difference(parse_limit("p99 time_to_first_token>5%"), comparison())
    assert missing is not None
    assert "cannot be checked: the comparison has no p99 time_to_first_token, or too few requests for it." in missing
    invalid = check_difference(parse_limit("p90 time_to_first_token>50%"), comparison("INVALID"))
    assert invalid is not None
    assert "cannot be checked: new is INVALID." in invalid


def test_metric_that_is_not_compared_is_refused() -> None:
    with pytest.raises(UserError, match="benchmark_duration is not compared; use one of time_to_first_token, "):
        parse_limit("benchmark_duration>5%")

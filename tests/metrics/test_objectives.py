"""Objectives for single requests, and the goodput that follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.metrics.batch import MeasureTable
from penstock.metrics.metric import Measures
from penstock.metrics.objectives import Objective, meets, parse_objectives
from penstock.records.record import Failure
from support.records import MS, make_record
from support.runs import report_run

FAILURE = Failure("Http", "500", "server")


def test_objectives_are_metrics_with_limits_and_directions() -> None:
    assert parse_objectives("time_to_first_token:200 e2el:1e3 output_token_throughput_per_user:20") == (
        Objective("time_to_first_token", 200.0, at_least=False),
        Objective("request_latency", 1000.0, at_least=False),
        Objective("output_token_throughput_per_user", 20.0, at_least=True),
    )
    assert parse_objectives("") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ttft", "takes pairs of a metric and a limit"),
        ("ttft:fast", "takes pairs of a metric and a limit"),
        ("ttft:-1", "takes pairs of a metric and a limit"),
        ("time_to_first_tokn:5", "did you mean time_to_first_token?"),
        ("request_throughput:5", "is not a metric of single requests"),
    ],
)
def test_invalid_objective_is_refused_with_the_reason(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match="--goodput") as error:
        parse_objectives(text)
    assert sentence in str(error.value)


def meets_all(objectives: tuple[Objective, ...], values: dict[str, float]) -> bool:
    (met,) = meets(objectives, MeasureTable.of((Measures(values, {}),)))
    return bool(met)


def test_limit_itself_is_met_and_a_missing_metric_is_not() -> None:
    objectives = parse_objectives("ttft:200 output_token_throughput_per_user:20")
    assert meets_all(objectives, {"time_to_first_token": 200.0, "output_token_throughput_per_user": 20.0})
    assert not meets_all(objectives, {"time_to_first_token": 200.1, "output_token_throughput_per_user": 20.0})
    assert not meets_all(objectives, {"time_to_first_token": 200.0, "output_token_throughput_per_user": 19.9})
    assert not meets_all(objectives, {"time_to_first_token": 200.0})


def test_goodput_is_counted_by_hand(tmp_path: Path) -> None:
    """Eight requests in two seconds: five within 60 ms, one slower, one failed, one cancelled."""
    records = [make_record(number=n) for n in range(5)]
    records.append(make_record(number=5, end=2005 * MS, stamps=[70 * MS, 80 * MS, 90 * MS, 95 * MS, 100 * MS]))
    records.append(make_record(number=6, failure=FAILURE))
    records.append(make_record(number=7, cancelled=True))
    run = report_run(tmp_path, records, goodput="ttft:60")
    assert run.json["good_request_count"]["avg"] == 5
    assert run.json["good_request_fraction"]["avg"] == pytest.approx(5 / 7)
    assert run.json["goodput"]["avg"] == pytest.approx(5 / 2)


def test_run_without_objectives_has_no_goodput(tmp_path: Path) -> None:
    assert "goodput" not in report_run(tmp_path, [make_record()]).json

"""The verdict of the certificate for given worker reports and request counts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.metrics.certificate import Certificate, RequestCounts, certify
from penstock.records.worker_report import MachineFacts, WorkerReport
from penstock.wire.stats import WireStats

CLEAN = RequestCounts(completed=100, succeeded=100, streams=100, stamps=1000)


def report(worker: int = 0, *, late_ms: int = 0, **fields: Any) -> WorkerReport:
    """Return the report of a worker whose only delay is that it read data `late_ms` after arrival."""
    gauge = WireStats(reads=1000, stamped=1000)
    gauge.delay.add(late_ms * 1_000_000)
    return WorkerReport(worker, wire_stats=gauge, machine=MachineFacts(wall_s=10.0, cpu_s=1.0), **fields)


def certificate(requests: RequestCounts, *reports: WorkerReport, workers: int = 1) -> Certificate:
    return certify(reports or (report(),), requests, workers=workers, open_loop=False)


def test_run_without_findings_is_valid() -> None:
    assert certificate(CLEAN) == Certificate("VALID", [], certificate(CLEAN).figures, certificate(CLEAN).summary)


@pytest.mark.parametrize("requests", [RequestCounts(), RequestCounts(completed=7)], ids=["all cancelled", "all failed"])
def test_run_without_a_successful_request_is_invalid(requests: RequestCounts) -> None:
    result = certificate(requests)
    assert (result.verdict, result.reasons) == ("INVALID", ["No request succeeded, so there is nothing to certify."])


@pytest.mark.parametrize(("errors", "verdict"), [(0, "VALID"), (1, "DEGRADED"), (5, "DEGRADED"), (6, "INVALID")])
def test_one_client_error_degrades_and_more_than_five_percent_invalidate(errors: int, verdict: str) -> None:
    result = certificate(CLEAN._replace(client_errors=errors, succeeded=100 - errors))
    assert result.verdict == verdict
    assert [reason.split(" requests")[0] for reason in result.reasons] == [f"{errors} of 100"] * (errors > 0)


def test_stamps_of_the_warmup_are_not_counted() -> None:
    """The worker's report counts the streams of the warmup too."""
    with_warmup = report(late_ms=50, streams=116)
    assert certificate(CLEAN, with_warmup).verdict == "VALID"
    coalesced = CLEAN._replace(streams=16, coalesced_first_stamps=8)
    result = certificate(coalesced, with_warmup)
    assert result.reasons[0].startswith("50.0% of the TTFTs are upper bounds")
    assert (result.figures["streams"], result.figures["coalesced_first_stamps"]) == (16, 8)


def test_missing_worker_report_makes_the_run_invalid() -> None:
    result = certificate(CLEAN, report(), workers=2)
    assert (result.verdict, result.reasons) == ("INVALID", ["1 of 2 workers did not report (killed or crashed)."])
    assert certify([], CLEAN, workers=1, open_loop=False).verdict == "INVALID"


@pytest.mark.parametrize(("level", "verdict"), [(1, "DEGRADED"), (2, "INVALID")])
def test_extra_checks_decide_the_verdict_too(level: int, verdict: str) -> None:
    result = certify([report()], CLEAN, workers=1, open_loop=False, extra_checks=[(level, "It differs.")])
    assert (result.verdict, result.reasons) == (verdict, ["It differs."])

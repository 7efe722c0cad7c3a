"""The verdict on a run, from made-up facts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.metrics.certificate import Certificate, Measured, certify
from penstock.records.worker_report import MachineFacts, WorkerReport
from penstock.wire.stats import WireStats

GOOD = Measured(completed=100, succeeded=100, streams=100, stamps=1000)


def report(worker: int = 0, *, late_ms: int = 0, **fields: Any) -> WorkerReport:
    """Of a worker that had nothing to hide, but that its reads came `late_ms` after the arrival."""
    wire_stats = WireStats(reads=1000, stamped=1000)
    wire_stats.delay.add(late_ms * 1_000_000)
    return WorkerReport(worker, wire_stats=wire_stats, machine=MachineFacts(wall_s=10.0, cpu_s=1.0), **fields)


def judged(measured: Measured, *reports: WorkerReport, workers: int = 1) -> Certificate:
    return certify(reports or (report(),), measured, workers=workers, open_loop=False)


def test_nothing_to_say() -> None:
    assert judged(GOOD) == Certificate("VALID", [], judged(GOOD).figures, judged(GOOD).summary)


@pytest.mark.parametrize("measured", [Measured(), Measured(completed=7)], ids=["all cancelled", "all failed"])
def test_without_a_success_there_is_nothing_to_vouch_for(measured: Measured) -> None:
    found = judged(measured)
    assert (found.verdict, found.reasons) == ("INVALID", ["No request succeeded: there are no figures to vouch for."])


@pytest.mark.parametrize(("ours", "verdict"), [(0, "VALID"), (1, "DEGRADED"), (5, "DEGRADED"), (6, "INVALID")])
def test_what_we_failed_ourselves_counts_from_the_first(ours: int, verdict: str) -> None:
    found = judged(GOOD._replace(own_faults=ours, succeeded=100 - ours))
    assert found.verdict == verdict
    assert [reason.split(" requests")[0] for reason in found.reasons] == [f"{ours} of 100"] * (ours > 0)


def test_stamps_are_those_of_the_figures_and_not_of_the_warmup() -> None:
    """A worker's own count has those of a warmup in it."""
    warmed = report(late_ms=50, streams=116)
    assert judged(GOOD, warmed).verdict == "VALID"
    blurred = GOOD._replace(streams=16, first_coalesced=8)
    found = judged(blurred, warmed)
    assert found.reasons[0].startswith("50.0% of the TTFTs are upper bounds")
    assert (found.figures["streams"], found.figures["coalesced_first_stamps"]) == (16, 8)


def test_a_worker_that_did_not_report() -> None:
    found = judged(GOOD, report(), workers=2)
    assert (found.verdict, found.reasons) == ("INVALID", ["1 of 2 workers did not live to report on themselves."])
    assert certify([], GOOD, workers=1, open_loop=False).verdict == "INVALID"

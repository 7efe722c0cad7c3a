"""The verdict of the certificate for given worker reports and request counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from penstock.metrics.bounds import GAPS, HEADLINE, FigureBounds, Unresolved
from penstock.metrics.certificate import (
    UNOBSERVABLE,
    VERDICTS,
    BoundsByMetric,
    Certificate,
    Judgement,
    RequestCounts,
    certify,
)
from penstock.records.nodes import LoggedNode
from penstock.records.worker_report import MachineFacts, WorkerReport
from penstock.wire.stats import WireStats

CLEAN = RequestCounts(completed=100, succeeded=100, streams=100, stamps=1000)


def report(worker: int = 0, *, late_ms: int = 0, **fields: Any) -> WorkerReport:
    """Return the report of a worker whose only delay is that it read data `late_ms` after arrival."""
    wire_stats = WireStats(reads=1000, stamped=1000)
    wire_stats.delay.add(late_ms * 1_000_000)
    return WorkerReport(worker, wire_stats=wire_stats, machine=MachineFacts(wall_s=10.0, cpu_s=1.0), **fields)


def certificate(
    requests: RequestCounts, *reports: WorkerReport, bounds: BoundsByMetric | None = None, workers: int = 1, **load: Any
) -> Certificate:
    return certify(reports or (report(),), requests, bounds or {}, workers=workers, open_loop=False, **load)


def test_run_without_findings_is_valid() -> None:
    found = certificate(CLEAN, metrics=["request_latency"])
    judged = {"load": Judgement("VALID"), "metrics": {"request_latency": Judgement("VALID")}}
    assert found == Certificate("VALID", [], found.figures, found.summary, **judged)


@pytest.mark.parametrize("requests", [RequestCounts(), RequestCounts(completed=7)], ids=["all cancelled", "all failed"])
def test_run_without_a_successful_request_is_invalid(requests: RequestCounts) -> None:
    result = certificate(requests)
    assert (result.verdict, result.reasons) == ("INVALID", ["No request succeeded, so there is nothing to certify."])


@pytest.mark.parametrize(("errors", "verdict"), [(0, "VALID"), (1, "DEGRADED"), (5, "DEGRADED"), (6, "INVALID")])
def test_one_client_error_degrades_and_more_than_five_percent_invalidate(errors: int, verdict: str) -> None:
    result = certificate(CLEAN._replace(client_errors=errors, succeeded=100 - errors))
    assert result.verdict == verdict
    assert [reason.split(" requests")[0] for reason in result.reasons] == [f"{errors} of 100"] * (errors > 0)


@pytest.mark.parametrize(
    ("tag", "value", "low", "verdict"),
    [
        ("time_to_first_token", 200.0, 200.0, "VALID"),
        ("time_to_first_token", 200.0, 191.0, "VALID"),
        ("time_to_first_token", 200.0, 189.0, "DEGRADED"),
        ("time_to_first_token", 200.0, 149.0, "INVALID"),
        ("time_to_first_token", 2.0, 1.1, "VALID"),
        ("time_to_first_token", 2.0, 0.9, "DEGRADED"),
        ("time_to_first_token", 2.0, 0.0, "DEGRADED"),
        ("effective_latency", 20.0, 15.5, "VALID"),
        ("effective_latency", 20.0, 14.5, "DEGRADED"),
        ("time_to_second_token", 40.0, 0.0, "DEGRADED"),
        ("inter_token_latency", 1.0, 0.95, "VALID"),
        ("inter_token_latency", 1.0, 0.8, "DEGRADED"),
        ("inter_token_latency", 5.0, 3.5, "INVALID"),
    ],
)
def test_verdict_follows_from_how_far_a_figure_can_have_moved(tag: str, value: float, low: float, verdict: str) -> None:
    exact = FigureBounds(value, value, value)
    found = certificate(CLEAN, bounds={tag: {"avg": exact, "p99": FigureBounds(value, low, value)}})
    assert found.verdict == verdict
    assert found.bounds == {tag: {"avg": (value, value), "p99": (low, value)}}
    if verdict != "VALID":
        (reason,) = found.reasons
        assert f"p99 {value:.2f} [{low:.2f}–{value:.2f}] ms." in reason
        assert "avg" not in reason


def figure(value: float, low: float, high: float | None = None) -> dict[str, FigureBounds]:
    return {"p99": FigureBounds(value, low, value if high is None else high)}


EXACT_TTFT = figure(200.0, 199.4)
BLURRED_ITL = figure(0.04, 0.0, 1.3)
BURSTS = Unresolved(replies=80, in_time=100)
"""Most replies arrived in bursts, and were read in time."""
STALLS = Unresolved(replies=3, in_time=40, late=60)
"""Late reads hide when the tokens of most replies arrived; those of the others are known."""


def test_gap_that_cannot_be_observed_does_not_invalidate_an_exact_ttft() -> None:
    tags = ["time_to_first_token", "inter_token_latency", "output_token_throughput_per_user"]
    bounds = {"time_to_first_token": EXACT_TTFT, "inter_token_latency": BLURRED_ITL}
    found = certificate(CLEAN, bounds=bounds, metrics=tags, unresolved={"inter_token_latency": BURSTS})
    assert (found.verdict, found.reasons) == ("VALID", [])
    assert {tag: judged.verdict for tag, judged in found.metrics.items()} == {
        "time_to_first_token": "VALID",
        "inter_token_latency": UNOBSERVABLE,
        "output_token_throughput_per_user": UNOBSERVABLE,
    }
    (reason,) = found.left_out
    assert reason == (
        "Inter Token Latency and Output Token Throughput Per User cannot be observed: in 80 of 100 replies, the tokens arrived "
        "closer together than reads can tell apart."
    )
    assert found.bounds["inter_token_latency"] == {"p99": (0.0, 1.3)}, "files keep the figure"


def test_gap_that_late_reads_spoil_stays_and_is_invalid() -> None:
    tags = ["time_to_first_token", "inter_token_latency", "output_token_throughput_per_user"]
    bounds = {"inter_token_latency": BLURRED_ITL}
    found = certificate(CLEAN, bounds=bounds, metrics=tags, unresolved={"inter_token_latency": STALLS})
    assert (found.verdict, found.unobservable) == ("INVALID", [])
    assert found.of("time_to_first_token") == "VALID"
    assert found.of("inter_token_latency") == found.of("output_token_throughput_per_user") == "INVALID"


@pytest.mark.parametrize(
    ("counts", "is_hidden"),
    [
        (Unresolved(21, 40, 60), True),
        (Unresolved(20, 40, 60), False),
        (Unresolved(11, 11, 89), True),
        (Unresolved(10, 10, 90), False),
        (Unresolved(0, 0, 100), False),
    ],
)
def test_late_reads_prove_nothing_about_the_gaps(counts: Unresolved, is_hidden: bool) -> None:
    tag = "inter_token_latency"
    found = certificate(CLEAN, bounds={tag: BLURRED_ITL}, metrics=[tag], unresolved={tag: counts})
    assert (found.verdict, found.unobservable) == (("VALID", [tag]) if is_hidden else ("INVALID", []))
    if is_hidden:
        assert (
            f"in {counts.replies} of {counts.in_time} replies that were read in time, the tokens" in found.left_out[0]
        )


def test_reason_is_said_once_and_names_its_figures() -> None:
    bounds = {
        "time_to_first_token": figure(200.0, 100.0),
        "time_to_first_output_token": figure(200.0, 100.0),
        "request_latency": figure(300.0, 270.0),
        "effective_latency": figure(300.0, 300.0),
    }
    found = certificate(CLEAN, bounds=bounds, metrics=list(bounds))
    (reason,) = found.reasons
    assert reason == (
        "The client read several network segments at once, or was slow to send, so the true values are uncertain: "
        "Time to First Token (INVALID) p99 200.00 [100.00–200.00] ms; Request Latency p99 300.00 [270.00–300.00] ms."
    )
    assert [found.metrics[tag].verdict for tag in bounds] == ["INVALID", "INVALID", "DEGRADED", "VALID"]
    assert found.load == Judgement("VALID")


def test_disturbed_load_is_no_verdict_on_the_observation_of_a_figure() -> None:
    found = certificate(CLEAN, report(clock_steps=1), metrics=["request_latency"])
    assert found.load is not None
    assert (found.load.verdict, found.metrics["request_latency"].verdict) == ("INVALID", "VALID")
    assert found.of("request_latency") == "INVALID", "a figure at another load"


TOLERANCES = dict.fromkeys(HEADLINE, 1.0) | {
    "inter_token_latency": 0.1,
    "time_per_output_token": 0.1,
    "effective_latency": 5.0,
}


def tolerated(tag: str, figures: dict[str, FigureBounds]) -> int:
    """Return the severity by the table in docs/certificate.md."""
    (f,) = figures.values()
    shift = max(f.high - f.value, f.value - f.low)
    if shift > max(10 * TOLERANCES[tag], f.value / 4) and tag != "time_to_second_token":
        return 2
    return int(shift > max(TOLERANCES[tag], f.value / 20))


@pytest.mark.parametrize("busy", ["", "degraded", "invalid"])
@pytest.mark.parametrize("tag", HEADLINE)
def test_no_run_passes_that_its_load_or_a_shown_figure_makes_invalid(tag: str, busy: str) -> None:
    load = {"": [], "degraded": [(1, "It is late.")], "invalid": [(2, "It is late.")]}[busy]
    by_load = len(busy) and load[0][0]
    for value, part, other in product((0.04, 1.0, 8.0, 200.0), (0.0, 0.04, 0.2, 0.3, 1.0), (0.0, 30.0, 300.0)):
        moved = figure(value, (1 - part) * value, value + other)
        bounds = {tag: moved, "request_latency" if tag != "request_latency" else "time_to_first_token": EXACT_TTFT}
        severity = max(by_load, tolerated(tag, moved))
        for unresolved in ({}, {tag: STALLS}):
            found = certificate(CLEAN, bounds=bounds, metrics=HEADLINE, unresolved=unresolved, extra_checks=load)
            assert found.verdict == VERDICTS[severity]
        if tag in GAPS:
            found = certificate(CLEAN, bounds=bounds, metrics=HEADLINE, unresolved={tag: BURSTS}, extra_checks=load)
            assert (found.verdict, tag in found.unobservable) == (VERDICTS[by_load], True)


def test_set_wall_clock_invalidates() -> None:
    result = certificate(CLEAN, report(clock_steps=1))
    sentence = "The wall clock was set 1 time during the run, which shifts kernel timestamps near it."
    assert (result.verdict, result.reasons) == ("INVALID", [sentence])


def test_resumed_run_is_degraded() -> None:
    result = certificate(CLEAN, resumed=["The run was resumed after a gap of 3.0 s."])
    assert (result.verdict, result.reasons) == ("DEGRADED", ["The run was resumed after a gap of 3.0 s."])


def test_late_reads_alone_move_nothing() -> None:
    assert certificate(CLEAN, report(late_ms=500)).verdict == "VALID"


@pytest.mark.parametrize(("succeeded", "verdict"), [(95, "VALID"), (94, "DEGRADED"), (50, "DEGRADED"), (49, "INVALID")])
def test_failed_requests_are_named(succeeded: int, verdict: str) -> None:
    found = certificate(CLEAN._replace(succeeded=succeeded))
    assert found.verdict == verdict
    if verdict != "VALID":
        assert found.reasons[0].startswith(f"{100 - succeeded} of 100 requests failed")


def test_concurrency_that_was_never_reached_is_named() -> None:
    found = certificate(CLEAN._replace(conversations=10), concurrency=50)
    assert (found.verdict, len(found.reasons)) == ("DEGRADED", 1)
    assert found.reasons[0] == "The concurrency of 50 was never reached: the run had only 10 conversations."
    assert certificate(CLEAN._replace(conversations=50), concurrency=50).verdict == "VALID"


def test_missing_worker_report_makes_the_run_invalid() -> None:
    result = certificate(CLEAN, report(), workers=2)
    assert (result.verdict, result.reasons) == ("INVALID", ["1 of 2 workers did not report (killed or crashed)."])
    assert certify([], CLEAN, {}, workers=1, open_loop=False).verdict == "INVALID"


@pytest.mark.parametrize(("level", "verdict"), [(1, "DEGRADED"), (2, "INVALID")])
def test_extra_checks_decide_the_verdict_too(level: int, verdict: str) -> None:
    result = certify([report()], CLEAN, {}, workers=1, open_loop=False, extra_checks=[(level, "It differs.")])
    assert (result.verdict, result.reasons) == (verdict, ["It differs."])


def test_each_node_and_worker_of_a_cluster_has_a_certificate() -> None:
    busy = report(2, requests=30)
    busy.machine.cpu_s = 9.9
    nodes = [LoggedNode("a", (0, 2), 0, 1000, 0), LoggedNode("b", (1, 3), 5_000_000_000, 2_000_000, -1_000_000)]
    reports = [report(0, requests=40), report(1, requests=50), busy]
    found = certificate(CLEAN._replace(wide_stamps=500), *reports, workers=4, nodes=nodes)
    first, second = found.nodes
    assert [(each.worker, each.verdict, each.figures["requests"]) for each in first.by_worker] == [
        (0, "VALID", 40),
        (2, "DEGRADED", 30),
    ]
    # The stamps of all requests say nothing about one node.
    assert (first.verdict, first.reasons) == ("DEGRADED", first.by_worker[1].reasons)
    assert "The client used 99% of its CPU core" in first.reasons[0]
    assert [each.worker for each in second.by_worker] == [1]
    assert (second.verdict, second.reasons) == ("INVALID", ["1 of 2 workers did not report."])
    assert (second.clock_offset_ms, second.clock_error_ms) == (5000.0, 3.0)

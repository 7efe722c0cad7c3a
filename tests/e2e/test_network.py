"""The network's part of the latency, and the HTTP phases of requests, against the mock."""

from __future__ import annotations

import json

import pytest

from support.programs import Program

PHASES = ("blocked_ns", "dns_lookup_ns", "connecting_ns", "sending_ns", "waiting_ns", "receiving_ns")


@pytest.mark.parametrize("reuse", ["pooled", "never"])
def test_latency_without_the_round_trip_and_phases_that_add_up(program: Program, reuse: str) -> None:
    run = program.profile(
        *("mock://?ttft=20", "--request-count", 12, "--concurrency", 3, "--export-http-trace"),
        *("--connection-reuse-strategy", reuse, "--network-latency-automatic", "--network-latency-ping-interval", 0.05),
    )
    assert run.status == 0, run
    rtt = run.summary["network_rtt"]["avg"]
    probes = [json.loads(line) for line in run.text("profile_export_network_latency.jsonl").splitlines()]
    assert {probe["success"] for probe in probes} == {True}
    assert rtt == pytest.approx(sum(probe["rtt_ns"] for probe in probes) / len(probes) / 1e6)
    raw, adjusted = run.summary["request_latency"], run.summary["network_adjusted_request_latency"]
    assert raw["p50"] - adjusted["p50"] == pytest.approx(rtt)
    for record in run.records:
        trace, meta = record["trace_data"], record["metadata"]
        assert sum(trace[name] for name in PHASES) == trace["response_receive_end_ns"] - meta["credit_issued_ns"]
        assert trace["duration_ns"] == trace["response_receive_end_ns"] - trace["request_send_start_ns"]
        assert trace["duration_ns"] == meta["request_end_ns"] - meta["request_start_ns"]
        assert trace["duration_ns"] / 1e6 == record["metrics"]["request_latency"]["value"]
        assert (trace["connecting_ns"] > 0) is (reuse == "never")

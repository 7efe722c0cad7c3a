"""The round trip of the network: probes, their mean, and the latencies without it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from time import monotonic_ns

import msgspec
import pytest

from penstock.metrics.conditions import check_run, parse_assertion
from penstock.metrics.groups.network import network_metrics
from penstock.metrics.statistics import Stats
from penstock.records.log import Sample
from penstock.settings.schema import TelemetrySettings
from penstock.telemetry.network import NETWORK, NetworkLatency, NetworkLatencyBuilder, NetworkProbes, ProbedUrl
from penstock.wire.pool import resolve
from support.records import make_record
from support.runs import make_settings, report_run


def test_probe_takes_the_time_of_a_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        origin = resolve("127.0.0.1", server.getsockname()[1], None)[0]
        began = monotonic_ns()
        (found,) = NetworkProbes([ProbedUrl("http://a", origin)]).collect()
        ended = monotonic_ns()
    assert found.source == NETWORK
    assert found.values["port"] == origin.port
    assert 0 < found.values["rtt_ns"] <= ended - began
    assert began <= found.at <= ended


def test_probe_of_a_closed_port_has_an_error() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can
        origin = resolve("127.0.0.1", bound.getsockname()[1], None)[0]
        (found,) = NetworkProbes([ProbedUrl("http://a", origin)]).collect()
    assert found.values["error"] == "Connection refused"


def sample(at: int, **values: object) -> Sample:
    return Sample(NETWORK, at, {"url": "http://a", "host": "a", "port": 80, **values})


def test_mean_covers_the_successful_probes_up_to_the_end_of_the_phases() -> None:
    builder = NetworkLatencyBuilder(100, None, probed=True)
    for found in (
        sample(10, rtt_ns=1_000_000),
        sample(20, error="no"),
        Sample("other", 25, {}),
        sample(30, rtt_ns=2_000_000),
        sample(200, rtt_ns=90_000_000),
    ):
        builder.add(found)
    assert builder.result() == NetworkLatency(1.5, 2, 1, "no")
    assert NetworkLatencyBuilder(100, None, probed=False).result() is None
    assert NetworkLatencyBuilder(100, 2.5, probed=False).result() == NetworkLatency(2.5, given=True)


def test_statistics_are_shifted_and_not_negative() -> None:
    latency = NetworkLatency(2.0)
    stats = Stats("ms", avg=5.0, p50=4.0, min=1.0, max=9.0, std=3.0, count=2, sum=10.0)
    metrics = network_metrics({"request_latency": stats, "inter_token_latency": stats}, latency)
    assert metrics["network_rtt"] == Stats("ms", avg=2.0)
    shifted = Stats("ms", avg=3.0, p50=2.0, min=0.0, max=7.0, std=3.0, count=2)
    assert metrics == {"network_rtt": Stats("ms", avg=2.0), "network_adjusted_request_latency": shifted}
    assert latency.clamped == ("request_latency",)
    assert check_run(parse_assertion("p50 network_adjusted_request_latency<3"), metrics) is None


def test_given_round_trip_is_subtracted_and_no_probe_is_written(tmp_path: Path) -> None:
    telemetry = TelemetrySettings(network_ms=0.5)
    settings = msgspec.structs.replace(make_settings(), telemetry=telemetry)
    run = report_run(tmp_path, [make_record(), make_record(number=1)], settings=settings)
    for tag in ("time_to_first_token", "time_to_first_output_token", "request_latency"):
        raw, adjusted = run.json[tag], run.json[f"network_adjusted_{tag}"]
        for name in ("avg", "p50", "p99", "min", "max"):
            assert raw[name] - adjusted[name] == pytest.approx(0.5)
        assert raw["std"] == adjusted["std"]
    assert run.json["network_rtt"] == {"unit": "ms", "avg": 0.5}
    assert run.json["input_config"]["network_latency"] == {"mean_ms": 0.5}
    assert any(line.startswith("Network-Adjusted Time to First Token (ms),") for line in run.csv)
    assert not os.path.exists(run.path("profile_export_network_latency.jsonl"))


@pytest.mark.parametrize("rtt_ms", [None, 1000.0])
def test_report_says_what_the_round_trip_does_not_fit(tmp_path: Path, rtt_ms: float | None) -> None:
    telemetry = TelemetrySettings(network_ms=rtt_ms, probe_network=rtt_ms is None)
    run = report_run(tmp_path, [make_record()], settings=msgspec.structs.replace(make_settings(), telemetry=telemetry))
    text = " ".join(run.read("profile_export_console.txt").split())
    if rtt_ms is None:
        assert "The network latency is not known: no probe of the servers succeeded" in text
        assert "network_rtt" not in run.json
    else:
        assert "Some requests took less than the network's round trip" in text
        assert json.loads(run.read("profile_export_aiperf.json"))["network_adjusted_request_latency"]["max"] == 0

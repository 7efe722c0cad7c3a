"""`--server-metrics`: counters of the server equal what was sent, and files are rebuilt from the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.programs import Outcome, Program

WARMUP, REQUESTS = 3, 12
FILES = tuple(f"server_metrics_export.{name}" for name in ("json", "csv", "jsonl", "parquet"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("server-metrics"))


@pytest.fixture(scope="module")
def run(program: Program) -> Outcome:
    load = ("--request-count", REQUESTS, "--concurrency", 6, "--warmup-request-count", WARMUP, "--streaming")
    formats = ("--server-metrics-formats", "json", "csv", "jsonl", "parquet", "--telemetry-interval", 0.1)
    url = "mock://?ttft=100&tokens=5&slots=2&prefix_cache=100"
    done = program.profile(url, *load, "--server-metrics", "localhost:1", *formats)
    assert done.status == 0, done
    return done


def document(run: Outcome) -> dict[str, Any]:
    return json.loads(run.text(FILES[0]))


def test_scraped_counter_equals_the_requests_sent(run: Outcome) -> None:
    by_reason = document(run)["metrics"]["vllm:request_success"]["series"]
    assert sum(series["stats"]["total"] for series in by_reason) == REQUESTS
    assert document(run)["metrics"]["vllm:e2e_request_latency_seconds"]["series"][0]["stats"]["count"] == REQUESTS


def test_queue_of_the_server_is_seen(run: Outcome) -> None:
    (concepts,) = document(run)["concepts"].values()
    assert 1 <= concepts["queue_depth"]["max"] <= 4  # six at once, and two slots
    assert concepts["running_requests"]["max"] == 2
    assert "Queue Depth (requests)" in run.out


def test_server_without_metrics_is_a_note(run: Outcome) -> None:
    assert "No server metrics from http://localhost:1/metrics" in run.out
    summary = document(run)["summary"]
    assert len(summary["endpoints_configured"]) == 2
    assert len(summary["endpoints_successful"]) == 1


def test_every_scrape_is_a_line_on_the_clock_of_the_requests(run: Outcome) -> None:
    lines = [json.loads(line) for line in run.text(FILES[2]).splitlines()]
    (info,) = document(run)["summary"]["endpoint_info"].values()
    assert len(lines) == info["total_fetches"] > 3
    last = sum(entry["value"] for entry in lines[-1]["metrics"]["vllm:request_success"])
    assert last == WARMUP + REQUESTS
    assert lines[0]["timestamp_ns"] < run.records[0]["metadata"]["request_start_ns"]
    assert lines[-1]["timestamp_ns"] > max(record["metadata"]["request_end_ns"] for record in run.records)


def test_parquet_file_has_the_values_of_each_scrape(run: Outcome) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
    table = parquet.read_table(run.folder / FILES[3])
    assert table.column_names[-5:] == ["value", "sum", "count", "bucket_le", "bucket_count"]
    rows = table.to_pylist()
    last = rows[-1]["timestamp_ns"]
    assert last > max(record["metadata"]["request_end_ns"] for record in run.records)
    ended = [row for row in rows if row["timestamp_ns"] == last]
    assert sum(row["value"] for row in ended if row["metric_name"] == "vllm:request_success") == REQUESTS
    waiting = [row["value"] for row in rows if row["metric_name"] == "vllm:num_requests_waiting"]
    (concepts,) = document(run)["concepts"].values()
    assert max(waiting) == concepts["queue_depth"]["max"]
    latencies = [row for row in ended if row["metric_name"] == "vllm:e2e_request_latency_seconds"]
    assert {row["count"] for row in latencies} == {REQUESTS}
    assert latencies[-1]["bucket_le"] == "+Inf"
    assert latencies[-1]["bucket_count"] == REQUESTS
    assert latencies[0]["model_name"] == "mock-model"


def test_report_rebuilds_the_files(program: Program, run: Outcome, tmp_path: Path) -> None:
    again = tmp_path / "again"
    done = program.run("report", run.folder, "--output-dir", again, command="penstock")
    assert done.status == 0, done
    assert [(again / name).read_bytes() for name in FILES] == [(run.folder / name).read_bytes() for name in FILES]


def test_explain_finds_the_queue_of_known_length(program: Program, run: Outcome) -> None:
    found = json.loads(program.run("explain", run.folder, "--slowest", REQUESTS, "--json", command="penstock").out)
    assert found["requests"] == REQUESTS
    queues = [request["evidence"].get("queue_depth", 0) for request in found["slowest"]]
    assert 3 <= max(queues) <= 4  # six at once, and two slots; between two requests it is three for a moment
    assert {evidence["name"] for evidence in found["evidence"] if evidence["verdict"] != "unknown"} >= {
        "queue_depth",
        "client_delay_ms",
    }
    times = [request["at_s"] for request in found["slowest"]]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--server-metrics", "--no-server-metrics"), "contradict each other"),
        (("--server-metrics", "--server-metrics-formats", "xml"), "must be json, csv, jsonl or parquet, not 'xml'"),
        (("--telemetry-interval", "2"), "both are missing"),
        (("--server-metrics-formats", "csv", "--no-server-metrics"), "contradict each other"),
        (("--gpu-telemetry", "--no-gpu-telemetry"), "contradict each other"),
        (("--gpu-telemetry", "amdsmi"), "amdsmi is not supported yet"),
        (("--server-metrics", "mock://"), "is scraped by itself"),
        (("--server-metrics", "http://u:p@host"), "has a user name"),
    ],
)
def test_bad_values_are_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    from penstock.cli.profile import COMMAND_LINE
    from penstock.errors import UserError
    from penstock.settings.parse import parse
    from penstock.settings.resolve import resolve

    with pytest.raises(UserError, match=sentence):
        resolve(parse(COMMAND_LINE, ["--model", "m", *flags]))

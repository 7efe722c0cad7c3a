"""The two readings of the servers' own metrics, of which users hear nothing if there are none."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.http_server import HttpReply, HttpRequest, HttpServer
from support.programs import MockServer, Outcome, Program

NAMES = ("server_metrics_export.json", "server_metrics_export.csv")
ANSWER = json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode()


def total(done: Outcome, metric: str) -> float:
    series = json.loads(done.text(NAMES[0]))["metrics"][metric]["series"]
    return float(sum(each["stats"]["total"] for each in series))


class Server(HttpServer):
    """Answers requests, and /metrics as a test wants."""

    def __init__(self, metrics: Callable[[], HttpReply]) -> None:
        self._metrics = metrics
        super().__init__(self._answer)

    def _answer(self, request: HttpRequest, _: int) -> HttpReply:
        if request.path == "/metrics":
            return self._metrics()
        return HttpReply(ANSWER, headers={"Content-Type": "application/json"})

    @property
    def readings(self) -> list[HttpRequest]:
        return [request for request in self.received if request.path == "/metrics"]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[], HttpReply]], Server]]:
    servers: list[Server] = []

    def start(metrics: Callable[[], HttpReply]) -> Server:
        servers.append(Server(metrics))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_growth_of_counters_is_that_of_the_profiling_phase(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("--request-count", 12, "--warmup-request-count", 5, "--streaming", "--wait-for-model-timeout", 20)
    done = program.profile(mock(ttft=5).url, *flags)
    assert done.status == 0, done
    assert total(done, "vllm:request_success") == 12
    metrics = json.loads(done.text(NAMES[0]))["metrics"]
    assert metrics["vllm:e2e_request_latency_seconds"]["series"][0]["stats"]["count"] == 12
    assert metrics["vllm:num_requests_running"]["series"][0]["stats"]["max"] == 0
    rows = list(csv.reader(done.text(NAMES[1]).splitlines()))
    header = next(row for row in rows if row[4:5] == ["total"])
    counts = [dict(zip(header, row, strict=True)) for row in rows if row[2:3] == ["vllm:request_success"]]
    assert header[:4] == ["Endpoint", "Type", "Metric", "Unit"]
    assert sum(float(row["total"]) for row in counts) == 12
    assert {row["finished_reason"] for row in counts} >= {"stop", "length"}
    assert NAMES[0] in done.out


def test_each_point_of_a_sweep_has_its_own_growth(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("--concurrency", "1,2", "--request-count", 6, "--wait-for-model-timeout", 20)
    done = program.profile(mock().url, *flags)
    for value in (1, 2):
        point = Outcome(done.status, done.out, done.err, done.folder / f"concurrency_{value}")
        assert total(point, "vllm:request_success") == 6


@pytest.mark.parametrize("flags", [("--no-server-metrics",), ("--config", "{config}")])
def test_metrics_are_not_read_if_the_user_turns_that_off(serve: Any, program: Program, flags: tuple[str, ...]) -> None:
    server = serve(HttpReply)
    config = program.folder / "config.yaml"
    config.write_text("schema_version: '2.0'\nbenchmark:\n  server_metrics: {enabled: false}\n")
    given = [flag.format(config=config) for flag in flags]
    done = program.profile(server.url, "--request-count", 2, *given)
    assert done.status == 0, done
    assert not server.readings


def test_server_without_metrics_is_asked_once_and_without_credentials(serve: Any, program: Program) -> None:
    server = serve(lambda: HttpReply(status=404))
    done = program.profile(server.url, "--request-count", 3, "--api-key", "secret", "--wait-for-model-timeout", 20)
    assert done.status == 0, done
    (reading,) = server.readings
    assert "authorization" not in reading.header_values
    assert not (done.folder / NAMES[0]).exists()
    assert "metrics" not in done.err.lower()


def test_reading_that_is_not_complete_in_time_is_cancelled_and_not_repeated(serve: Any, program: Program) -> None:
    release = threading.Event()

    def metrics() -> HttpReply:
        release.wait(60)
        return HttpReply(b"a_total 1\n")

    server = serve(metrics)
    try:
        done = program.profile(server.url, "--request-count", 3, "--warmup-request-count", 2)
    finally:
        release.set()
    assert done.status == 0, done
    assert len(server.readings) == 1
    assert not (done.folder / NAMES[0]).exists()
    assert "request_count" in done.summary

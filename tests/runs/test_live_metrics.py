"""The Prometheus metrics of a running benchmark."""

from __future__ import annotations

import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import UserError
from penstock.runs.live_metrics import LiveMetrics, render
from penstock.runs.phase_runner import RunProgress
from penstock.wire.stats import DurationSketch
from penstock.workers.messages import Progress
from support.ports import unused_port
from support.programs import wait_for

ROOT = Path(__file__).parents[2]
MS = 1_000_000


def worker(sent: int, ended: int, latencies_ms: tuple[int, ...]) -> Progress:
    latency = DurationSketch()
    for value in latencies_ms:
        latency.add(value * MS)
    return Progress(sent, ended, 1, sent - ended, latency, DurationSketch())


def progress(*workers: Progress) -> RunProgress:
    def total(name: str) -> int:
        return sum(getattr(each, name) for each in workers)

    return RunProgress(1, 5, 0, total("sent"), total("ended"), total("failed"), total("in_flight"), 0, workers)


class Control:
    """A run with the progress of two workers."""

    def __init__(self) -> None:
        self.progress = progress(worker(10, 8, (10, 30)), worker(5, 5, (200,)))

    def data_complete(self) -> None: ...

    def add_sample(self, source: str, at_ns: int, values: dict[str, Any]) -> None: ...


@pytest.fixture
def serving() -> Iterator[tuple[LiveMetrics, Control]]:
    metrics, control = LiveMetrics(0, {"model": 'm"1'}, 100), Control()
    metrics.start(control)
    metrics.poll()
    yield metrics, control
    metrics.finish()


def test_client_that_goes_away_is_not_reported(
    serving: tuple[LiveMetrics, Control], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, _ = serving
    accepted, ended = threading.Event(), threading.Event()

    def accept(*_: Any) -> bool:
        accepted.set()
        return True

    monkeypatch.setattr(metrics._server, "verify_request", accept)
    monkeypatch.setattr(metrics._server, "shutdown_request", lambda _: ended.set())
    with socket.create_connection(("127.0.0.1", metrics.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert accepted.wait(60)
    assert ended.wait(60)
    assert capfd.readouterr().err == ""


def families(page: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def fetch(metrics: LiveMetrics, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{path}", timeout=60) as reply:
        return str(reply.read().decode())


def value(found: dict[str, Any], name: str) -> float:
    (sample,) = found[name].samples
    return float(sample.value)


def test_page_has_the_totals_of_all_workers(serving: tuple[LiveMetrics, Control]) -> None:
    metrics, control = serving
    found = families(fetch(metrics))
    names = ("sent_requests", "ended_requests", "failed_requests", "in_flight_requests", "workers", "expected_requests")
    assert [value(found, f"penstock_run_{name}") for name in names] == [15, 13, 2, 2, 2, 100]
    assert found["penstock_run_info"].samples[0].labels["model"] == 'm"1'
    assert all(family.documentation for family in found.values())
    control.progress = progress(worker(20, 20, ()))
    metrics.between_phases()
    assert value(families(fetch(metrics)), "penstock_run_ended_requests") == 20


def test_histogram_counts_the_requests_below_each_edge(serving: tuple[LiveMetrics, Control]) -> None:
    histogram = families(fetch(serving[0]))["penstock_run_request_latency_seconds"]
    buckets = {float(s.labels["le"]): s.value for s in histogram.samples if s.name.endswith("_bucket")}
    assert [buckets[edge] for edge in sorted(buckets)] == sorted(buckets.values())
    for edge, count in buckets.items():
        assert count == sum(latency < edge for latency in (0.010, 0.030, 0.200))
    others = {s.name.rpartition("_")[2]: s.value for s in histogram.samples if not s.name.endswith("_bucket")}
    assert others == {"count": 3, "sum": pytest.approx(0.24)}


def test_only_the_metrics_page_exists(serving: tuple[LiveMetrics, Control]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(serving[0], "/")


def test_port_in_use_is_refused_in_one_sentence(serving: tuple[LiveMetrics, Control]) -> None:
    port = serving[0].port
    with pytest.raises(
        UserError, match=f"--metrics-port {port} cannot be used: Address already in use; choose another"
    ):
        LiveMetrics(port, {})


def test_grafana_board_uses_metrics_that_exist() -> None:
    page = render(Control().progress, {"model": "m", "endpoint": "chat"}, 100).decode()
    names = {sample.name for family in families(page).values() for sample in family.samples}
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"penstock_\w+", expression)}
    assert len(expressions) >= len(board["panels"]) > 0
    assert used <= names


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_scrapes_the_page(serving: tuple[LiveMetrics, Control], tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    target = f"127.0.0.1:{serving[0].port}"
    config.write_text(
        f"scrape_configs: [{{job_name: run, scrape_interval: 1s, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    port = unused_port("127.0.0.1")
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    prometheus = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def query(expression: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={expression}"
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return list(json.load(reply)["data"]["result"])
        except OSError:
            return []

    try:
        (found,) = wait_for(lambda: query("penstock_run_ended_requests_total"), what="the first scrape")
        assert found["value"][1] == "13"
        quantile = "histogram_quantile(1,penstock_run_request_latency_seconds_bucket)"
        (found,) = wait_for(lambda: query(quantile), what="the histogram")
        assert 0.2 <= float(found["value"][1]) <= 0.4
        (up,) = query("up")
        assert up["value"][1] == "1"
    finally:
        prometheus.kill()
        prometheus.wait()

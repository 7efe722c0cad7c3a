"""The live figures of a run as Prometheus metrics, which the process of the run serves (`--metrics-port`).

They are those of the progress display: totals of the workers, and histograms of every eighth request of the running phase.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock import __version__
from penstock.errors import UserError
from penstock.runs.companion import Companion, CompanionControl
from penstock.runs.phase_runner import RunProgress
from penstock.runs.prepare import Prepared
from penstock.settings.schema import Settings
from penstock.wire.stats import DurationSketch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INTERVAL_S = 0.5
_EDGES = range(16, 41)
"""Powers of two in ns: 65 µs to 1,100 s."""


class LiveMetrics(Companion):
    """Serves `/metrics` on a thread. The thread starts with the first poll, after the workers were forked."""

    def __init__(self, port: int, labels: dict[str, str], expected: int | None = None) -> None:
        """Raise UserError if the port is in use. `labels` describe the run; `expected` is the number of its requests."""
        try:
            self._server = _Server(("", port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"--metrics-port {port} cannot be used: {reason}; choose another port.") from None
        self.port: int = self._server.server_address[1]
        self._labels = labels
        self._expected = expected
        self._control: CompanionControl | None = None
        self._thread: threading.Thread | None = None
        self._due = 0.0

    def start(self, control: CompanionControl) -> None:
        self._control = control

    def poll(self) -> bool:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _INTERVAL_S
            self._update()
        if self._thread is None:
            self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
            self._thread.start()
        return False

    def between_phases(self) -> None:
        self._update()

    def _update(self) -> None:
        assert self._control is not None
        self._server.page = render(self._control.progress, self._labels, self._expected)

    def finish(self) -> str | None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page = b""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client may end its connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(server.page)))
        self.end_headers()
        self.wfile.write(server.page)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Print nothing."""


def render(progress: RunProgress, labels: dict[str, str], expected: int | None) -> bytes:
    """Return the metrics page."""
    info = {"version": __version__, **labels}
    gauges: list[tuple[str, str, float]] = [
        ("in_flight_requests", "Requests that are sent and have no complete reply", progress.in_flight),
        ("workers", "Worker processes, including lost ones", len(progress.workers)),
        ("phase_number", "Number of the running phase, from 0", progress.phase),
        ("stopping", "How often the run was interrupted, or 1 if an error ends it", progress.stopping),
        ("resident_memory_bytes", "Resident memory of the process that shows progress", _resident_bytes()),
    ]
    if expected is not None:
        gauges.append(("expected_requests", "Requests of the run, as far as they are known beforehand", expected))
    counters = [
        ("sent_requests", "Requests sent in all phases", progress.sent),
        ("ended_requests", "Requests that have ended in all phases, failed ones too", progress.ended),
        ("failed_requests", "Requests that have failed in all phases", progress.failed),
    ]
    lines = [f"# HELP penstock_run_info The run\n# TYPE penstock_run_info gauge\npenstock_run_info{_labels(info)} 1"]
    for name, text, value in gauges:
        lines.append(
            f"# HELP penstock_run_{name} {text}\n# TYPE penstock_run_{name} gauge\npenstock_run_{name} {value:g}"
        )
    for name, text, count in counters:
        full = f"penstock_run_{name}_total"
        lines.append(f"# HELP {full} {text}\n# TYPE {full} counter\n{full} {count}")
    lines += _histogram("request_latency_seconds", "Latency of every eighth request of the phase", progress.latency)
    lines += _histogram(
        "time_to_first_token_seconds", "Time to the first content of every eighth request", progress.first_content
    )
    return ("\n".join(lines) + "\n").encode()


def _histogram(name: str, text: str, durations: DurationSketch) -> Iterator[str]:
    full = f"penstock_run_{name}"
    yield f"# HELP {full} {text}\n# TYPE {full} histogram"
    for edge in _EDGES:
        yield f'{full}_bucket{{le="{2**edge / 1e9:.9g}"}} {durations.below(edge)}'
    yield f'{full}_bucket{{le="+Inf"}} {durations.n}'
    yield f"{full}_sum {durations.total / 1e9:.9f}"
    yield f"{full}_count {durations.n}"


def _labels(values: dict[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}"


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def live_metrics(settings: Settings, prepared: Prepared) -> LiveMetrics:
    labels = {"model": ",".join(settings.models), "endpoint": settings.endpoint.type}
    known = [count for count in prepared.expected if count is not None]
    expected = sum(known) if len(known) == len(prepared.expected) and not settings.experiment.parameters else None
    return LiveMetrics(settings.telemetry.metrics_port or 0, labels, expected)

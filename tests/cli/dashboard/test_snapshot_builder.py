"""Snapshots from the progress of a run, and whether a terminal can show the dashboard."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.dashboard.snapshot import GpuView, PhaseView, PointView, ServerView
from penstock.cli.dashboard.snapshot_builder import SnapshotBuilder
from penstock.cli.dashboard.terminal_check import why_no_dashboard
from penstock.records.log import LostWorker, Sample
from penstock.runs.phase_runner import RunProgress
from penstock.schedule.phase import Phase
from penstock.workers.messages import ErrorCause, Progress
from support.snapshots import report, sketch

SECOND = 1_000_000_000


def progress(
    phase: int, began_s: float, ended: int, failed: int = 0, workers: tuple[Progress, ...] = ()
) -> RunProgress:
    return RunProgress(phase, round(began_s * SECOND), 4, ended + 3, ended, failed, 5, 0, workers)


def phase(name: str, **fields: Any) -> Phase:
    return Phase(name=name, kind=name, **fields)


def test_each_phase_has_its_own_counts_and_time():
    builder = SnapshotBuilder()
    builder.phases.begin([phase("warmup"), phase("profiling", duration_s=9.0)], [10, None])
    for seconds, state in ((10, progress(0, 10, 0)), (12, progress(0, 10, 9, 1)), (14, progress(1, 14, 10, 2))):
        builder.phases.update(state, seconds * SECOND)
    builder.phases.update(last := progress(1, 14, 30, 5), 16 * SECOND)
    warmup, profiling = builder.build(last, 16 * SECOND, ()).phases
    assert warmup == PhaseView("Warmup", 10, None, began=True, over=True, seconds=2, ended=10, failed=2)
    assert profiling == PhaseView("Profiling", None, 9.0, began=True, seconds=2, ended=20, failed=3)


def test_points_follow_each_other():
    builder = SnapshotBuilder()
    builder.begin_point("concurrency_1", [phase("profiling")], [10])
    builder.phases.update(progress(0, 10, 0), 10 * SECOND)
    builder.phases.update(progress(0, 10, 10), 12 * SECOND)
    builder.end_point("5.0/s", failed=False)
    builder.phases.update(progress(0, 10, 10), 90 * SECOND)
    assert builder.phases.views[0].seconds == 2
    builder.begin_point("concurrency_2", [phase("profiling")], [20])
    builder.phases.update(progress(0, 10, 10), 91 * SECOND)
    assert builder.phases.views == [PhaseView("Profiling", 20, None)]
    builder.phases.update(progress(1, 92, 10), 92 * SECOND)
    builder.phases.update(last := progress(1, 92, 15), 93 * SECOND)
    snapshot = builder.build(last, 93 * SECOND, ())
    assert snapshot.points == [PointView("concurrency_1", "5.0/s"), PointView("concurrency_2")]
    assert (snapshot.phases[0].ended, snapshot.phases[0].seconds) == (5, 1)


def test_measures_of_the_workers_are_merged():
    causes = {ErrorCause("Too Many Requests", 429, "server"): 2}, {ErrorCause("Timeout", None, "server"): 1}
    workers = tuple(
        Progress(
            first_content=sketch(50, 4), waiting=2, tokens=10, tokens_reads=5, reads=7, errors=errors, report=report()
        )
        for errors in causes
    )
    builder = SnapshotBuilder()
    snapshot = builder.build(progress(0, 1, 20, 3, workers), SECOND, [LostWorker(1, 0, 0, "was killed by signal 9")])
    assert (snapshot.in_flight, snapshot.waiting) == (3, 4)
    assert (snapshot.tokens, snapshot.tokens_reads, snapshot.reads) == (20, 10, 14)
    assert snapshot.first_content.n == 8
    assert snapshot.errors == causes[0] | causes[1]
    assert snapshot.lost == ["Worker 1 was killed by signal 9."]
    assert len(snapshot.reports) == 2


def test_newest_telemetry_is_shown():
    page = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.25\n"
    values = {"nvidia_gpu_utilization": 90.0, "nvidia_power_usage": 300.0}
    builder = SnapshotBuilder()
    for sample in (
        Sample("server_metrics", 1, {"url": "http://user@host:8000/metrics", "latency_ns": 1, "page": page}),
        Sample(
            "server_metrics",
            2,
            {"url": "http://user@host:8000/metrics", "latency_ns": 1, "lines": [1], "values": [7.0]},
        ),
        Sample("server_metrics", 2, {"url": "http://other/metrics", "error": "It does not answer."}),
        Sample("nvml", 3, {"url": "nvml", "gpus": [(0, "GPU-1", "H200", None, values)]}),
    ):
        builder.add_sample(sample)
    snapshot = builder.build(progress(0, 1, 0), SECOND, ())
    assert snapshot.servers == [
        ServerView("host:8000", 7.0, None, 25.0),
        ServerView("other", error="It does not answer."),
    ]
    assert snapshot.gpus == [GpuView("0 H200", 90.0, None, 300.0, None)]


class Terminal:
    """Standard output on a pseudo-terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._master, self._slave = pty.openpty()
        self.stream = os.fdopen(self._slave, "w", encoding="utf-8")
        # Not `sys.stdout` itself, which pytest replaces.
        monkeypatch.setattr("penstock.cli.dashboard.terminal_check.sys", SimpleNamespace(stdout=self.stream))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())  # it is not the terminal of this process
        self.resize(80, 24)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def close(self) -> None:
        self._patch.undo()
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    made.close()


def test_capable_terminal_shows_the_dashboard(terminal: Terminal):
    assert why_no_dashboard() is None


@pytest.mark.parametrize("term", ["dumb", ""])
def test_dumb_terminal_does_not(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, term: str):
    monkeypatch.setenv("TERM", term)
    assert why_no_dashboard() in ("TERM is dumb", "TERM is not set")


def test_small_terminal_does_not(terminal: Terminal):
    terminal.resize(39, 24)
    assert why_no_dashboard() == "the terminal has 39×24 characters, and at least 40×12 are needed"


def test_command_in_the_background_does_not(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    assert why_no_dashboard() == "the command runs in the background"


def test_terminal_without_utf_8_does_not(terminal: Terminal):
    terminal.stream.reconfigure(encoding="latin-1")
    assert why_no_dashboard() == "the encoding of the terminal is latin-1"


def test_pipe_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert why_no_dashboard() == "standard output is not a terminal"

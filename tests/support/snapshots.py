"""Snapshots of a run for tests of the dashboard."""

from __future__ import annotations

from typing import Any

from penstock.cli.dashboard.snapshot import Header, PhaseView, Snapshot
from penstock.records.worker_report import WorkerReport
from penstock.wire.stats import DurationSketch

SECOND = 1_000_000_000


def make_header(**fields: Any) -> Header:
    return Header(
        **{"title": "Penstock: m at http://host", "workers": 1, "open_loop": False, "streaming": True} | fields
    )


def sketch(ms: float, count: int) -> DurationSketch:
    made = DurationSketch()
    for _ in range(count):
        made.add(round(ms * 1e6))
    return made


def report(cpu_share: float = 0.2, seconds: float = 10.0) -> WorkerReport:
    made = WorkerReport(0)
    made.wire_stats.reads = made.wire_stats.stamped = 100
    made.wire_stats.delay.add(50_000)
    made.lateness.add(1_000_000)
    made.latency.add(300_000_000)
    made.machine.wall_s, made.machine.cpu_s = seconds, cpu_share * seconds
    return made


def at_second(seconds: float, **fields: Any) -> Snapshot:
    """Return a snapshot of a run of 1,000 requests at 20 requests/s, with 10 tokens and 10 reads each."""
    ended = int(20 * seconds)
    profiling = PhaseView("Profiling", 1000, None, began=True, seconds=seconds, ended=ended)
    values: dict[str, Any] = {
        "at": round((100 + seconds) * SECOND),
        "phase": 0,
        "phases": [profiling],
        "in_flight": 8,
        "first_content": sketch(50, ended),
        "chunk_gap": sketch(5, ended),
        "latency": sketch(400, ended),
        "tokens": 10 * ended,
        "tokens_reads": 10 * ended,
        "reads": 10 * ended,
        "reports": [report()],
    }
    return Snapshot(**values | fields)

"""The messages between the process of a run and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.records.worker_report import WorkerReport
from penstock.workers.messages import Progress


class Header(msgspec.Struct, frozen=True):
    """The first message: what stays the same during the run."""

    title: str
    workers: int
    open_loop: bool
    streaming: bool
    points: int | None = None
    """Number of points of an experiment; None if it is not known beforehand."""


class Ready(msgspec.Struct, frozen=True):
    """The dashboard tells the run that it can draw. The run then stops drawing and sends its first snapshot."""


class Close(msgspec.Struct, frozen=True):
    """The run is over."""


class PhaseView(msgspec.Struct, frozen=True):
    name: str
    expected: int | None
    duration_s: float | None
    began: bool = False
    over: bool = False
    seconds: float = 0.0
    ended: int = 0
    failed: int = 0


class PointView(msgspec.Struct, frozen=True):
    name: str
    result: str | None = None
    """The figures of a point that has ended."""
    failed: bool = False


class ServerView(msgspec.Struct, frozen=True):
    name: str
    queued: float | None = None
    running: float | None = None
    cache: float | None = None
    """Usage of the key-value cache in percent."""
    error: str | None = None


class GpuView(msgspec.Struct, frozen=True):
    name: str
    utilization: float | None = None
    memory_gb: float | None = None
    power_w: float | None = None
    temperature: float | None = None


class Snapshot(Progress, frozen=True, kw_only=True):
    """The run at a moment: the progress of all workers together."""

    at: int
    """Monotonic ns."""
    phase: int
    """Number of the phase over all points."""
    connected: int = 0
    phases: Sequence[PhaseView] = ()
    """Phases of the run, or of the current point of an experiment."""
    stopping: int = 0
    reports: Sequence[WorkerReport] = ()
    lost: Sequence[str] = ()
    """A sentence for each worker that was lost."""
    points: Sequence[PointView] = ()
    servers: Sequence[ServerView] = ()
    gpus: Sequence[GpuView] = ()
    note: str | None = None
    """Description of the work of a run while it sends no requests."""

"""Makes snapshots from the progress of a run, its points and its telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.cli.dashboard.snapshot import PhaseView, PointView, Snapshot
from penstock.records.log import LostWorker, Sample
from penstock.runs.phase_runner import RunProgress
from penstock.schedule.phase import Phase

if TYPE_CHECKING:
    from penstock.cli.dashboard.telemetry import LiveTelemetry

_SUMS = ("waiting", "tokens", "tokens_reads", "reads", "stamps", "coalesced_stamps")


class SnapshotBuilder:
    def __init__(self) -> None:
        self.phases = PhaseCounts()
        self._points: list[PointView] = []
        self._telemetry: LiveTelemetry | None = None

    def begin_point(self, name: str, phases: Sequence[Phase], expected: Sequence[int | None]) -> None:
        self.phases.begin(phases, expected)
        self._points.append(PointView(name))

    def end_point(self, result: str, *, failed: bool) -> None:
        """Show the result of the point that began last."""
        self.phases.finish()
        self._points[-1] = replace(self._points[-1], result=result, failed=failed)

    def add_sample(self, sample: Sample) -> None:
        if self._telemetry is None:
            from penstock.cli.dashboard.telemetry import LiveTelemetry  # needed only with telemetry

            self._telemetry = LiveTelemetry()
        self._telemetry.add(sample)

    def build(self, progress: RunProgress, now: int, lost: Sequence[LostWorker]) -> Snapshot:
        workers, telemetry = progress.workers, self._telemetry
        return Snapshot(
            at=now,
            phase=progress.phase if progress.began else -1,
            connected=progress.connected,
            phases=list(self.phases.views),
            in_flight=max(0, progress.sent - progress.ended),
            stopping=progress.stopping,
            latency=progress.latency,
            first_content=progress.first_content,
            chunk_gap=progress.chunk_gap,
            errors=progress.errors,
            **{name: sum(getattr(worker, name) for worker in workers) for name in _SUMS},
            reports=[worker.report for worker in workers if worker.report is not None],
            lost=[f"Worker {worker.worker} {worker.how}." for worker in lost],
            points=list(self._points),
            servers=[] if telemetry is None else telemetry.servers,
            gpus=[] if telemetry is None else telemetry.gpus,
        )


class PhaseCounts:
    """The phases of a run or of the current point, with their counts."""

    def __init__(self) -> None:
        self.views: list[PhaseView] = []
        self._first = 0
        self._ended_before = self._failed_before = 0
        """Counts at the start of the running phase; the counters themselves are never reset."""
        self._running = -1

    def begin(self, phases: Sequence[Phase], expected: Sequence[int | None]) -> None:
        """Show these phases, which follow those that have been shown so far."""
        self._first += len(self.views)
        self.views = [
            PhaseView(f"{phase.name[:1].upper()}{phase.name[1:]}", count, phase.duration_s)
            for phase, count in zip(phases, expected, strict=True)
        ]

    def update(self, progress: RunProgress, now: int) -> None:
        if not progress.began:
            return
        if progress.phase != self._running:
            self._count(self._running, progress)
            self.finish()
            self._running = progress.phase
            self._ended_before, self._failed_before = progress.ended, progress.failed
        self._count(progress.phase, progress, max(0.0, (now - progress.began) / 1e9))

    def finish(self) -> None:
        """Mark the phases that have begun as over."""
        self.views = [replace(view, over=True) if view.began else view for view in self.views]

    def _count(self, phase: int, progress: RunProgress, seconds: float | None = None) -> None:
        index = phase - self._first
        if not 0 <= index < len(self.views) or self.views[index].over:
            return
        view = self.views[index]
        self.views[index] = replace(
            view,
            began=True,
            seconds=view.seconds if seconds is None else seconds,
            ended=progress.ended - self._ended_before,
            failed=progress.failed - self._failed_before,
        )

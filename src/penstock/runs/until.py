"""Ends a run when a figure has its target precision (`--until`)."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import msgspec
import numpy as np

from penstock.metrics.precision import Checkpoints, Precision
from penstock.runs.log_tail import LogTail, values_while_running
from penstock.runs.runner import RunningPhase
from penstock.workers.messages import Progress

__all__ = ["UntilRule"]

_POLL_NS = 100_000_000


class UntilRule:
    def __init__(self, log: str, target: Precision) -> None:
        """`log` is the folder of the run's log."""
        self._target = target
        self._tail = LogTail(log)
        self._checkpoints = Checkpoints(target)
        self._rows: list[tuple[int, float, int, int]] = []
        """Start, value, worker, and when it was issued."""
        self._polled = 0
        self._phase = -1
        self.is_reached = False
        self.ended_run = False
        """False if the limit of the run ended it, even if the last requests reached the target."""

    def is_met(self, running: RunningPhase) -> bool:
        now = monotonic_ns()
        if self.is_reached or now - self._polled < _POLL_NS:
            return self.is_reached
        self._polled = now
        self._phase = running.index
        self._read(running.progress.workers)
        if len(self._rows) >= self._checkpoints.next_at:
            self._look([row for row in self._rows if self._tail.is_settled(row[2], row[3])])
        self.ended_run = self.is_reached
        return self.ended_run

    def _read(self, workers: Sequence[Progress] = ()) -> None:
        records = [record for record in self._tail.read(workers) if record.phase == self._phase]
        for record, values in zip(records, values_while_running(records), strict=True):
            if values is not None and self._target.metric in values:
                self._rows.append((record.start, values[self._target.metric], record.worker, record.issued))

    def _look(self, rows: list[tuple[int, float, int, int]]) -> None:
        if len(rows) >= self._checkpoints.next_at:
            self.is_reached = self._checkpoints.look(np.array([row[1] for row in sorted(rows)]))

    def facts(self) -> dict[str, Any]:
        """Return what the log keeps about the rule, after the end of the phase."""
        if not self.is_reached:
            self._read()
            self._look(self._rows)
        interval = self._checkpoints.interval
        return {
            "target": self._target.text,
            "reached": self.is_reached,
            "ended_run": self.ended_run,
            "requests": len(self._rows),
            "level": self._checkpoints.level,
            "interval": None if interval is None else msgspec.to_builtins(interval),
        }

"""Ends a run when a figure has its target precision (`--until`).

Of the requests in flight at the same time, the short ones end first. A figure of all requests that have ended is therefore too
low: with 200 in flight, nearly all intervals of the first 100 that end miss the mean. The rule looks only at requests that were
issued before any that is in flight.
"""

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


class _Settled:
    """Finds the time before which all requests of a worker have ended and are in the log."""

    def __init__(self, ended_before: int) -> None:
        """`ended_before` is the number of requests that ended before the phase."""
        self._ended_before = ended_before
        self._message: Progress | None = None
        self.read = 0
        """Records of the worker that were read."""
        self.until = 0

    def hear(self, message: Progress) -> None:
        if self._message is None:
            self._message = message

    def check(self) -> None:
        """The log has the requests in the order of their ends, up to half a second later than the message."""
        message = self._message
        if message is not None and self.read >= message.ended - self._ended_before:
            self.until, self._message = message.oldest, None


class UntilRule:
    def __init__(self, log: str, target: Precision, before: Sequence[Progress]) -> None:
        """`log` is the folder of the run's log, and `before` the progress of the workers at the start of the phase."""
        self._target = target
        self._tail = LogTail(log)
        self._checkpoints = Checkpoints(target)
        self._before = {each.report.worker: each.ended for each in before if each.report is not None}
        self._workers: dict[int, _Settled] = {}
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
        for message in running.progress.workers:
            if message.report is not None:
                self._worker(message.report.worker).hear(message)
        self._read()
        for worker in self._workers.values():
            worker.check()
        if len(self._rows) >= self._checkpoints.next_at:
            self._look([row for row in self._rows if row[3] < self._worker(row[2]).until])
        self.ended_run = self.is_reached
        return self.ended_run

    def _worker(self, number: int) -> _Settled:
        if number not in self._workers:
            self._workers[number] = _Settled(self._before.get(number, 0))
        return self._workers[number]

    def _read(self) -> None:
        records = list(self._tail.read())
        for record in records:
            self._worker(record.worker).read += 1
        records = [record for record in records if record.phase == self._phase]
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

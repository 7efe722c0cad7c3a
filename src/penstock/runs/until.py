"""Ends a run when a figure has its target precision (`--until`)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.metrics.dependence import InFlight, requests_in_flight
from penstock.metrics.precision import Checkpoints, Precision
from penstock.records.log import UNTIL
from penstock.records.record import Record
from penstock.runs.log_tail import LogTail, values_while_running
from penstock.runs.phase_runner import RunningPhase
from penstock.workers.messages import Progress

_POLL_NS = 100_000_000


class _Row(NamedTuple):
    """A request that has the metric."""

    start: int
    end: int
    value: float
    phase: int
    worker: int
    issued: int


class UntilRule:
    kind = UNTIL

    def __init__(
        self,
        log: str,
        target: Precision,
        earlier: Mapping[int, Container[int]] | None = None,
        before: Sequence[Progress] = (),
    ) -> None:
        """`log` is the folder of the run's log. `earlier` are the phases that a resumed one continues, with the numbers of
        their sessions that begin again: the requests of the others count, too. `before` are the messages of workers that have
        ended the points before."""
        self._target = target
        self._tail = LogTail(log, before)
        self._checkpoints = Checkpoints(target)
        self._earlier = earlier or {}
        self._rows: list[_Row] = []
        self._has_read = False
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
            self._look([row for row in self._rows if self._is_settled(row)])
        self.ended_run = self.is_reached
        return self.ended_run

    def _read(self, workers: Sequence[Progress] = ()) -> None:
        records = [record for record in self._tail.read(workers) if self._counts(record)]
        for record, values in zip(records, values_while_running(records), strict=True):
            if values is not None and self._target.metric in values:
                value = values[self._target.metric]
                self._rows.append(_Row(record.start, record.end, value, record.phase, record.worker, record.issued))
        if not self._has_read:
            self._has_read = True
            self._checkpoints.skip(sum(row.phase in self._earlier for row in self._rows))

    def _counts(self, record: Record) -> bool:
        if record.phase == self._phase:
            return True
        return record.phase in self._earlier and record.number not in self._earlier[record.phase]

    def _is_settled(self, row: _Row) -> bool:
        return row.phase in self._earlier or self._tail.is_settled(row.worker, row.issued)

    def _look(self, rows: list[_Row]) -> None:
        if len(rows) >= self._checkpoints.next_at:
            starts, ends, values = np.array([(row.start, row.end, row.value) for row in sorted(rows)]).T
            self.is_reached = self._checkpoints.look(values, InFlight(requests_in_flight(starts, ends)))

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
            "level": self._checkpoints.confidence,
            "interval": None if interval is None else msgspec.to_builtins(interval),
        }

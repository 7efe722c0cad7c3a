"""Ends a phase early when the server falls behind the rate (`--stop-on-overload`)."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import msgspec
import numpy as np

from penstock.metrics.overload import EARLY, Overload, growing, window
from penstock.metrics.statistics import Values
from penstock.records.log import OVERLOAD
from penstock.records.record import Record
from penstock.runs.log_tail import LogTail
from penstock.runs.phase_runner import RunningPhase
from penstock.workers.messages import Progress

_POLL_NS = 100_000_000
_FIRST_LOOK, _FACTOR = 200, 1.5
"""Requests that must be due before the first look, and how far the time grows from one look to the next."""


class Looks:
    """Looks at the number in flight so far, now and then. Two looks in a row must find that it grows, because each may be
    wrong."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []
        self._next_at = 0.0
        self._found_before = False

    def look(self, now: float, due: int, ended: int, early: Values | None) -> Overload | None:
        """Take the numbers of requests that were due and that have ended by now, in ns. `early` are the latencies of the first
        requests; None if they are not known yet."""
        self._samples.append((now, due, ended))
        begin = self._samples[0][0]
        if early is None or now < self._next_at or due - self._samples[0][1] < _FIRST_LOOK:
            return None
        self._next_at = begin + _FACTOR * (now - begin)
        edges = window(begin, now, early)
        if edges is None:
            return None
        times, *counts = np.array(self._samples).T
        found = growing(edges, *(np.interp(edges, times, values) for values in counts))
        decided, self._found_before = self._found_before, found is not None
        return found if decided else None


class OverloadRule:
    def __init__(self, log: str, before: Sequence[Progress] = ()) -> None:
        """`log` is the folder of the run's log. `before` are the messages of workers that have ended the points before."""
        self._tail: LogTail | None = LogTail(log, before)
        self._looks = Looks()
        self._polled = 0
        self._records: list[Record] = []
        self._early: Values | None = None
        self.overload: Overload | None = None

    @property
    def kind(self) -> str | None:
        return None if self.overload is None else OVERLOAD

    def is_met(self, running: RunningPhase) -> bool:
        now = monotonic_ns()
        if now - self._polled < _POLL_NS or now < running.began:
            return False
        self._polled = now
        progress = running.progress
        if self._tail is not None:
            self._read(self._tail, running.index, progress.workers)
        due = progress.sent + sum(worker.waiting for worker in progress.workers)
        self.overload = self._looks.look(float(now), due, progress.ended, self._early)
        return self.overload is not None

    def _read(self, tail: LogTail, phase: int, workers: Sequence[Progress]) -> None:
        """Read the log until the first requests have ended."""
        self._records += [record for record in tail.read(workers) if record.phase == phase]
        settled = [record for record in self._records if tail.is_settled(record.worker, record.issued)]
        if len(settled) >= EARLY:
            first = sorted(settled, key=lambda record: record.issued)[:EARLY]
            self._early = np.array([record.end - record.intended for record in first], np.float64)
            self._tail, self._records = None, []

    def facts(self) -> dict[str, Any]:
        return {} if self.overload is None else msgspec.structs.asdict(self.overload)

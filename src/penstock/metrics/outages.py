"""Times in which the server or the network was down: every request that ended then lost its connection or got none."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.metrics.batch import Batch
from penstock.plural import counted
from penstock.records.record import Record

__all__ = ["Outages"]

_DOWN = frozenset({"ConnectionLost", "ConnectionRefused", "ConnectionFailed"})
_MIN_REQUESTS = 3
_MIN_NS = 1_000_000_000
_MAX_LISTED = 3


class _Outage(NamedTuple):
    start: int
    """End of the last successful request before it."""
    end: int | None
    """End of the first successful request after it; None if there is none."""
    requests: int


class Outages:
    """Finds outages. Takes the requests of a phase nearly in the order of their ends."""

    def __init__(self) -> None:
        self._last_success: int | None = None
        self._last_failure = 0
        self._failures = 0
        self._found: list[_Outage] = []

    def add_batch(self, batch: Batch) -> None:
        if batch.failed.any() or self._failures:
            for record in batch.records:
                self.add(record)
        elif (succeeded := np.flatnonzero(batch.succeeded)).size:
            self._last_success = batch.records[succeeded[-1]].end

    def add(self, record: Record) -> None:
        if record.cancelled:
            return
        if record.failure is None:
            self._close(record.end)
            self._last_success = record.end
        elif record.failure.type in _DOWN:
            self._failures += 1
            self._last_failure = record.end

    def _close(self, end: int | None) -> None:
        failures, self._failures = self._failures, 0
        if self._last_success is None or failures < _MIN_REQUESTS:
            return
        if (self._last_failure if end is None else end) - self._last_success >= _MIN_NS:
            self._found.append(_Outage(self._last_success, end, failures))

    def notes(self, start: int) -> list[str]:
        """Return a sentence for each outage; `start` is that of the phase. Call this once, after the last request."""
        self._close(None)
        notes = [_sentence(outage, start) for outage in self._found[:_MAX_LISTED]]
        if more := len(self._found) - _MAX_LISTED:
            notes += [f"There were {counted(more, 'other time')} without an answer."] if more > 0 else []
        return notes


def _sentence(outage: _Outage, start: int) -> str:
    begin = f"{(outage.start - start) / 1e9:.1f} s after the start"
    until = "to the end" if outage.end is None else f"to {(outage.end - start) / 1e9:.1f} s"
    return (
        f"No server answered from {begin} {until}: {counted(outage.requests, 'request')} lost the connection or got none. This "
        "time is part of the duration, so throughput is lower by it; latencies cover only the requests that succeeded."
    )

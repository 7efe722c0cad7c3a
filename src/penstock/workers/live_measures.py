"""The measures of a worker for the progress of a running phase. The results of a run come from its records instead."""

from __future__ import annotations

from itertools import pairwise

from penstock.records.record import Record
from penstock.wire.stats import DurationSketch
from penstock.workers.messages import ErrorCause

_MAX_GAPS = 64
"""Gaps of one reply that are added. All 10,000 gaps of a long one would stall the event loop for milliseconds."""
_MAX_CAUSES = 32
_OTHER = ErrorCause("Other errors", None, "")


class LiveMeasures:
    def __init__(self) -> None:
        self.latency = DurationSketch()
        self.first_content = DurationSketch()
        self.chunk_gap = DurationSketch()
        self.errors: dict[ErrorCause, int] = {}
        self.tokens = self.tokens_reads = 0
        self.stamps = self.coalesced_stamps = 0

    def count(self, record: Record, sampled: bool) -> None:
        """Count a request that has ended; its times only if it is `sampled`."""
        failure = record.failure
        if failure is not None:
            if not record.cancelled:
                cause = ErrorCause(failure.type, failure.code, failure.owner)
                if cause not in self.errors and len(self.errors) >= _MAX_CAUSES:
                    cause = _OTHER
                self.errors[cause] = self.errors.get(cause, 0) + 1
            return
        stamps, usage = record.stamps, record.usage
        tokens = None if usage is None else usage.completion
        self.tokens += sum(record.pieces) if tokens is None else tokens
        self.tokens_reads += record.reads
        self.stamps += len(stamps)
        self.coalesced_stamps += len(record.coalesced)
        if sampled:
            self.latency.add(record.latency_ns)
            if stamps:
                self.first_content.add(stamps[0])
                self._add_gaps(stamps)

    def _add_gaps(self, stamps: list[int]) -> None:
        step = max(1, (len(stamps) - 1) // _MAX_GAPS)
        add = self.chunk_gap.add
        for index, (before, after) in enumerate(pairwise(stamps)):
            if index % step == 0:
                add(after - before)

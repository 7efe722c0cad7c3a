"""Values of a reply that several metrics use."""

from __future__ import annotations

from penstock.records.record import Record

__all__ = ["choice_count", "latency_ns"]


def latency_ns(record: Record) -> int:
    """Return the time from start to the last content of a stream, or to the last byte of any other reply."""
    if record.streamed and record.stamps:
        return record.stamps[-1]
    return record.end - record.start


def choice_count(record: Record) -> int:
    """Return the number of choices in the reply. A server generates them in parallel."""
    outputs = len(record.outputs)
    if outputs == 1 and len(record.reasonings) < 2:
        return 1  # the usual case, without the cost of max()
    return max(1, outputs, len(record.reasonings))

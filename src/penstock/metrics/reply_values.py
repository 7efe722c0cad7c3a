"""Values of a reply that several metrics use."""

from __future__ import annotations

from penstock.records.record import Record

__all__ = ["choice_count"]


def choice_count(record: Record) -> int:
    """Return the number of choices in the reply. A server generates them in parallel."""
    outputs = len(record.outputs)
    if outputs == 1 and len(record.reasonings) < 2:
        return 1  # the usual case, without the cost of max()
    return max(1, outputs, len(record.reasonings))

"""Compute the metrics of one record, in display units and in the order of the catalogue."""

from __future__ import annotations

from penstock.metrics.catalogue import GROUPS
from penstock.metrics.metric import Measures, TokenCounts
from penstock.records.record import Record

__all__ = ["measure"]

_OF_SUCCEEDED = tuple(group.measure for group in GROUPS if group.measure is not None)
_OF_FAILED = tuple(group.measure_failed for group in GROUPS if group.measure_failed is not None)


def measure(record: Record, counts: TokenCounts) -> Measures:
    """Return the metrics of a record: none if it was cancelled, only those of failures if it failed."""
    measures = Measures({}, {})
    if not record.cancelled:
        for add in _OF_SUCCEEDED if record.failure is None else _OF_FAILED:
            add(record, counts, measures)
    return measures

"""Compute the metrics of one record, in display units and in the order of the catalogue."""

from __future__ import annotations

from penstock.metrics.catalogue import CATALOGUE, GROUPS
from penstock.metrics.metric import Measures, TokenCounts
from penstock.records.header import RunHeader
from penstock.records.record import Record

__all__ = ["measure", "unfit_metrics"]

_OF_SUCCEEDED = tuple(group.measure for group in GROUPS if group.measure is not None)
_OF_FAILED = tuple(group.measure_failed for group in GROUPS if group.measure_failed is not None)


def unfit_metrics(header: RunHeader) -> frozenset[str]:
    """Return the metrics that mean nothing for the endpoint of a run, which would be rows of zeros."""
    declaration = header.declaration
    return frozenset(tag for tag, m in CATALOGUE.items() if m.needs is not None and not getattr(declaration, m.needs))


def measure(record: Record, counts: TokenCounts, unfit: frozenset[str] = frozenset()) -> Measures:
    """Return the metrics of a record except `unfit`: none if it was cancelled, only those of failures if it failed."""
    measures = Measures({}, {})
    if not record.cancelled:
        for add in _OF_SUCCEEDED if record.failure is None else _OF_FAILED:
            add(record, counts, measures)
    if unfit:
        for values in (measures.values, measures.lists):
            for tag in unfit & values.keys():
                del values[tag]
    return measures

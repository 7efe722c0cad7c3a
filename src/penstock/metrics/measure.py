"""Compute the metrics of requests, in display units and in the order of the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.catalogue import CATALOGUE, GROUPS
from penstock.metrics.groups.stalls import measure_reader
from penstock.metrics.metric import TokenCounts
from penstock.records.header import RunHeader

_OF_BATCH = tuple(group.measure_batch for group in GROUPS if group.measure_batch is not None)
_OF_RECORD = tuple(group.measure for group in GROUPS if group.measure is not None)


def unfit_metrics(header: RunHeader) -> frozenset[str]:
    """Return the metrics that mean nothing for the endpoint of a run, which would be rows of zeros."""
    declaration = header.declaration
    return frozenset(tag for tag, m in CATALOGUE.items() if m.needs is not None and not getattr(declaration, m.needs))


def measure_batch(
    batch: Batch, counts: Sequence[TokenCounts], unfit: frozenset[str] = frozenset(), reader_rate: float | None = None
) -> MeasureTable:
    """Return the metrics of records except `unfit`: none of those that were cancelled, only those of failures of failed ones.

    `reader_rate` is the speed of a reader in tokens per second, for the metrics of a reader.
    """
    table = MeasureTable(batch.size, unfit)
    columns = CountColumns(counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        for add in _OF_BATCH:
            add(batch, columns, table)
    if _OF_RECORD or (reader_rate and "fluidity_index" not in unfit):
        table = _measure_each(batch, counts, table, reader_rate, unfit)
    return table


def _measure_each(
    batch: Batch,
    counts: Sequence[TokenCounts],
    table: MeasureTable,
    reader_rate: float | None,
    unfit: frozenset[str],
) -> MeasureTable:
    """Add the metrics that are computed for one record after the other: those of other packages, and of a reader."""
    rows = table.rows
    for record, count, measures in zip(batch.records, counts, rows, strict=True):
        if record.failure is None and not record.cancelled:
            for add in _OF_RECORD:
                add(record, count, measures)
            if reader_rate and "fluidity_index" not in unfit:
                measure_reader(record, count, measures, reader_rate)
    return MeasureTable.of(rows, unfit)

"""Requests as series, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.request_series import SeriesRecorder, SeriesTable
from penstock.records.record import Record
from support.scratch import SCRATCH


def series_table(records: Sequence[Record]) -> SeriesTable:
    """Return the series of a few requests without metrics."""
    recorder = SeriesRecorder(SCRATCH)
    recorder.add(Batch(records), MeasureTable(len(records)), None)
    table = recorder.table()
    assert table is not None
    return table

"""Metrics of failed requests."""

from __future__ import annotations

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, per_request

__all__ = ["GROUP"]

_METRICS = (
    per_request(
        "error_isl",
        "Error Input Sequence Length",
        "tokens",
        "input_sequence_length of the failed requests.",
        larger=True,
        needs="input_tokens",
    ),
)


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    if batch.failed.any():
        table.put("error_isl", counts.input, batch.failed, whole=True)


GROUP = MetricGroup(_METRICS, measure_batch=_measure)

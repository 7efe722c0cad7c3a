"""Metrics of failed requests."""

from __future__ import annotations

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, read_metrics

_METRICS = read_metrics("""\
error_isl | Error Input Sequence Length | tokens | larger needs=input_tokens
    input_sequence_length of the failed requests.
""")


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    if batch.failed.any():
        table.put("error_isl", counts.input, batch.failed, whole=True)


GROUP = MetricGroup(_METRICS, measure_batch=_measure)

"""Metrics of failed requests."""

from __future__ import annotations

from penstock.metrics.metric import Measures, MetricGroup, TokenCounts, per_request
from penstock.records.record import Record

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


def _measure_failed(_record: Record, counts: TokenCounts, measures: Measures) -> None:
    if counts.input is not None:
        measures.values["error_isl"] = counts.input


GROUP = MetricGroup(_METRICS, measure_failed=_measure_failed)

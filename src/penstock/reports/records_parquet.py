"""Write `profile_export.parquet`: one row per request, in the order of the log, including the warmup.

The columns are those of the per-request JSONL file without its nesting: the metadata, then one column for each metric of the
catalogue, null where a request does not have it. Metrics with several values are lists. Times are Unix nanoseconds.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from penstock.extras import require_extra
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.metric import Measures
from penstock.metrics.summary import Summary
from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.parquet_rows import ParquetRows
from penstock.reports.sink import DraftSink, ReportContext
from penstock.scratch import Spool

if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP = 8_192
_ROW_GROUP_VALUES = 1_000_000
"""Most rows in a group of rows, and about the most values of lists."""


class RecordsParquet(DraftSink):
    def __init__(self, context: ReportContext, path: str) -> None:
        require_extra("parquet", "--export parquet", "pyarrow")
        schema = _schema(context.header.penstock_version, context.header.benchmark_id)
        super().__init__(context, path)
        self._rows = ParquetRows(self.file, schema)
        self._epoch = context.header.epoch_wall_ns
        self._urls = context.header.settings.endpoint.urls
        self._phases: dict[int, LoggedPhase] = {}
        self._values = 0

    def begin(self, phase: LoggedPhase) -> None:
        self._phases[phase.index] = phase

    def add(self, record: Record, measures: Measures) -> None:
        metadata = self._metadata(record)
        for name, column in self._rows.columns.items():
            if name in metadata:
                column.append(metadata[name])
            elif name in measures.lists:
                column.append(measures.lists[name])
                self._values += len(measures.lists[name])
            else:
                column.append(measures.values.get(name))
        if len(self._rows) >= _ROW_GROUP or self._values >= _ROW_GROUP_VALUES:
            self._rows.flush()
            self._values = 0

    def section_part(self) -> Spool:
        self._rows.close()
        return super().section_part()

    def add_part(self, part: Spool) -> None:
        self._rows.append(part)

    def finish(self, summary: Summary) -> None:
        self._rows.close()
        super().finish(summary)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._rows.close()
        super().close()

    def _metadata(self, record: Record) -> dict[str, Any]:
        epoch, failure = self._epoch, record.failure
        return {
            "session_num": record.number,
            "turn_index": record.turn,
            "conversation": record.conversation,
            "x_request_id": record.request_id,
            "x_correlation_id": record.correlation_id,
            "phase": self._phases[record.phase].kind,
            "worker": record.worker,
            "url": self._urls[record.url],
            "intended_ns": epoch + record.intended,
            "credit_issued_ns": epoch + record.issued,
            "request_start_ns": epoch + record.start,
            "request_ack_ns": None if record.first_byte is None else epoch + record.first_byte,
            "request_end_ns": epoch + record.end,
            "streamed": record.streamed,
            "was_cancelled": record.cancelled,
            "status": record.status or None,
            "error_type": None if failure is None else failure.type,
            "error_message": None if failure is None else failure.message,
            "error_fault": None if failure is None else failure.owner,
            "finish_reasons": record.finish,
            "body_sha256": record.digest.hex() if record.digest else None,
        }


def _schema(version: str, benchmark_id: str) -> pyarrow.Schema:
    import pyarrow as pa

    text, whole, flag = pa.string(), pa.int64(), pa.bool_()
    fields = [
        ("session_num", whole),
        ("turn_index", whole),
        ("conversation", whole),
        ("x_request_id", text),
        ("x_correlation_id", text),
        ("phase", text),
        ("worker", whole),
        ("url", text),
        ("intended_ns", whole),
        ("credit_issued_ns", whole),
        ("request_start_ns", whole),
        ("request_ack_ns", whole),
        ("request_end_ns", whole),
        ("streamed", flag),
        ("was_cancelled", flag),
        ("status", whole),
        ("error_type", text),
        ("error_message", text),
        ("error_fault", text),
        ("finish_reasons", pa.list_(text)),
        ("body_sha256", text),
    ]
    for tag, metric in CATALOGUE.items():
        if metric.kind != "run":
            type_ = pa.float64() if metric.kind == "record" else pa.list_(pa.float64())
            fields.append(pa.field(tag, type_, metadata={"unit": metric.unit}))
    return pa.schema(fields, metadata={"penstock_version": version, "benchmark_id": benchmark_id})

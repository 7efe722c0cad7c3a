"""Write `profile_export.jsonl`: one line per request, in the order of the log, including the warmup.

Times are Unix nanoseconds. `credit_issued_ns` is the time at which a slot was free for the request, and `intended_ns` the
time at which it was scheduled. `request_end_ns` of a successful request is the end of its latency (the last content of a
stream); of a failed one, the time of the failure. `body_sha256` is the hash of the body that was handed to the socket; a
request that never reached a socket has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.groups.http import http_phases
from penstock.metrics.statistics import Values
from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.record_metadata import RecordMetadata, error_fields
from penstock.reports.sink import DraftSink, ReportContext


class RecordsJsonl(DraftSink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._epoch = context.header.epoch_wall_ns
        self._http_trace = context.header.settings.output.http_trace
        self._metadata = RecordMetadata(context)

    def begin(self, phase: LoggedPhase) -> None:
        self._metadata.begin(phase)

    def add_batch(self, batch: Batch, table: MeasureTable) -> None:
        metrics = _encoded_metrics(table)
        lines: list[bytes] = []
        for record, of_record in zip(batch.records, metrics, strict=True):
            lines += b'{"metadata":', self._metadata.encode(record), b',"metrics":', of_record
            if self._http_trace:
                lines += b',"trace_data":', orjson.dumps(trace_data(record, self._epoch))
            if error := error_fields(record):
                lines += b',"error":', orjson.dumps(error)
            lines.append(b"}\n")
        self.file.write(b"".join(lines))


def _encoded_metrics(table: MeasureTable) -> list[bytes]:
    """Return the metrics of each request as JSON.

    The numbers of all requests are encoded at once and fill a template for each set of tags: encoding 40 small dictionaries for
    each request takes several times as long. A number that all requests share is part of the template."""
    found = [b""] * table.size
    lists = {tag: _encoded_lists(table.list_rows(tag)) for tag in table.lists}
    for layout in table.layouts():
        columns = dict(zip(layout.tags, layout.values, strict=True))
        shared = {tag: orjson.dumps(values[0]).decode() for tag, values in columns.items() if _is_constant(values)}
        template = _template((*layout.tags, *layout.lists), shared)
        rows = _encoded_rows([values for tag, values in columns.items() if tag not in shared], len(layout.rows))
        for row, numbers in zip(layout.rows, rows, strict=True):
            numbers += [lists[tag][row] for tag in layout.lists]
            found[row] = template % tuple(numbers)
    return found


def _is_constant(values: list[float]) -> bool:
    return values[0] == values[-1] and values.count(values[0]) == len(values)


def _encoded_rows(columns: list[list[float]], size: int) -> Iterable[list[bytes]]:
    if not columns:
        return ([] for _ in range(size))
    encoded = orjson.dumps(list(zip(*columns, strict=True)))
    return (row.split(b",") for row in encoded[2:-2].split(b"],["))


def _encoded_lists(arrays: list[Values]) -> list[bytes]:
    encoded = orjson.dumps([array.tolist() for array in arrays])
    return [b"[%b]" % row for row in encoded[2:-2].split(b"],[")]


def _template(tags: tuple[str, ...], shared: dict[str, str]) -> bytes:
    units = {tag: CATALOGUE[tag].unit.replace("%", "%%") for tag in tags}
    fields = (f'"{tag}":{{"value":{shared.get(tag, "%b")},"unit":"{unit}"}}' for tag, unit in units.items())
    return ("{" + ",".join(fields) + "}").encode()


def trace_data(record: Record, epoch: int) -> dict[str, Any]:
    """Return the HTTP phases. DNS and connection set-up have durations but no start times: those are not recorded."""
    fields: dict[str, Any] = {"trace_type": "penstock", "request_send_start_ns": epoch + record.start}
    if record.sent is not None:
        fields["request_send_end_ns"] = epoch + min(record.sent, record.first_byte or record.sent)
        fields["request_chunks_count"] = 1
    fields["request_bytes_total"] = record.bytes_sent
    if record.status:
        fields["response_status_code"] = record.status
    if record.first_byte is not None:
        fields["response_receive_start_ns"] = epoch + record.first_byte
        fields["response_chunks_count"] = record.reads
        fields["response_bytes_total"] = record.bytes_received
        fields["response_receive_end_ns"] = epoch + record.end
    if record.reused:
        fields["connection_reused_ns"] = epoch + record.start
    phases = http_phases(record)
    if phases is not None:
        blocked, dns, connect, sending, waiting, receiving = phases
        fields |= {
            "sending_ns": sending,
            "waiting_ns": waiting,
            "receiving_ns": receiving,
            "duration_ns": sending + waiting + receiving,
            "blocked_ns": blocked,
            "dns_lookup_ns": dns,
            "connecting_ns": connect,
        }
    return fields

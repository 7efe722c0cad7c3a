"""Write `profile_export.jsonl`: one line per request, in the order of the log, including the warmup.

Times are Unix nanoseconds. `credit_issued_ns` is the time at which a slot was free for the request, and `intended_ns` the
time at which it was scheduled. `request_end_ns` of a successful request is the end of its latency (the last content of a
stream); of a failed one, the time of the failure. `body_sha256` is the hash of the body that was handed to the socket; a
request that never reached a socket has none.
"""

from __future__ import annotations

from typing import Any

import orjson

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.groups.http import http_phases
from penstock.metrics.metric import Measures
from penstock.metrics.reply_values import latency_ns
from penstock.metrics.summary import Summary
from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.artifacts import Draft
from penstock.reports.sink import ReportContext, Sink

__all__ = ["RecordsJsonl"]

_SESSIONS_KEPT = 8_192


class RecordsJsonl(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._draft = Draft(path)
        self._write = self._draft.file.write
        self._epoch = context.header.epoch_wall_ns
        self._urls = context.header.settings.endpoint.urls
        self._http_trace = context.header.settings.output.http_trace
        self._payloads = context.log.payloads
        self._phases: dict[int, dict[str, Any]] = {}
        """For each phase, by its index in the log, the metadata that its records share."""
        self._profiling_phases = 0
        self._sessions: dict[int, str] = {}
        self._templates: dict[tuple[str, ...], bytes] = {}

    def begin(self, phase: LoggedPhase) -> None:
        fields: dict[str, Any] = {"benchmark_phase": phase.kind, "phase_index": len(self._phases)}
        if phase.kind == "profiling":
            fields["profiling_index"] = self._profiling_phases
            self._profiling_phases += 1
        self._phases.setdefault(phase.index, {**fields, "phase_name": phase.name, "phase_kind": phase.kind})

    def add(self, record: Record, measures: Measures) -> None:
        parts = [b'{"metadata":', orjson.dumps(self._metadata(record)), b',"metrics":', self._metrics(measures)]
        if self._http_trace:
            parts += b',"trace_data":', orjson.dumps(trace_data(record, self._epoch))
        if error := _error(record):
            parts += b',"error":', orjson.dumps(error)
        parts.append(b"}\n")
        self._write(b"".join(parts))

    def finish(self, _summary: Summary) -> None:
        self._draft.commit()

    def close(self) -> None:
        self._draft.discard()

    def _metrics(self, measures: Measures) -> bytes:
        """Fill a template per set of tags: encoding 40 small dictionaries per line takes twice as long."""
        values, lists = measures.values, measures.lists
        tags = (*values, *lists)
        template = self._templates.get(tags)
        if template is None:
            template = self._templates[tags] = _template(tags)
        numbers = orjson.dumps(list(values.values()))[1:-1].split(b",") if values else []
        for array in lists.values():
            numbers.append(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
        return template % tuple(numbers)

    def _metadata(self, record: Record) -> dict[str, Any]:
        epoch = self._epoch
        start = epoch + record.start
        fields: dict[str, Any] = {
            "session_num": record.number,
            "x_request_id": record.request_id,
            "x_correlation_id": record.correlation_id,
            "conversation_id": self._session(record.payload),
            "turn_index": record.turn,
            "credit_issued_ns": epoch + record.issued,
            "request_start_ns": start,
        }
        if record.first_byte is not None:
            fields["request_ack_ns"] = epoch + record.first_byte
        succeeded = record.failure is None and not record.cancelled
        fields["request_end_ns"] = start + latency_ns(record) if succeeded else epoch + record.end
        worker = f"worker_{record.worker}"
        fields["worker_id"] = worker
        fields["record_processor_id"] = worker
        fields.update(self._phases[record.phase])
        fields["was_cancelled"] = record.cancelled
        if record.cancelled:
            fields["cancellation_time_ns"] = epoch + record.end
        fields["context_overflow_skip"] = False
        fields["agent_depth"] = 0
        fields["root_correlation_id"] = record.correlation_id
        fields["intended_ns"] = epoch + record.intended
        fields["url"] = self._urls[record.url]
        fields["streamed"] = record.streamed
        fields["coalesced_stamps"] = len(record.coalesced)
        if record.retries:
            fields["retries"] = record.retries
        if record.redirects:
            fields["redirects"] = record.redirects
        fields["finish_reasons"] = record.finish
        if record.digest:
            fields["body_sha256"] = record.digest.hex()
        return fields

    def _session(self, payload: int) -> str:
        session = self._sessions.get(payload)
        if session is None:
            if len(self._sessions) >= _SESSIONS_KEPT:
                self._sessions.clear()
            session = self._sessions[payload] = self._payloads.session(payload)
        return session


def _template(tags: tuple[str, ...]) -> bytes:
    fields = (f'"{tag}":{{"value":%b,"unit":"{CATALOGUE[tag].unit.replace("%", "%%")}"}}' for tag in tags)
    return ("{" + ",".join(fields) + "}").encode()


def _error(record: Record) -> dict[str, Any] | None:
    if record.cancelled:
        # Tools for AIPerf recognize a cancelled request by this code and type.
        seconds = (record.end - record.start) / 1e9
        return {
            "code": 499,
            "type": "RequestCancellationError",
            "message": f"Cancelled by the client {seconds:.3f} s after it was sent.",
        }
    failure = record.failure
    if failure is None:
        return None
    fields: dict[str, Any] = {} if failure.code is None else {"code": failure.code}
    return {**fields, "type": failure.type, "message": failure.message, "fault": failure.owner}


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

"""The fields that identify a request and its error, in the files with a line for each request."""

from __future__ import annotations

from typing import Any

from penstock.metrics.reply_values import latency_ns
from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.sink import ReportContext

__all__ = ["RecordMetadata", "error_fields"]

_SESSIONS_KEPT = 8_192


class RecordMetadata:
    def __init__(self, context: ReportContext) -> None:
        self._epoch = context.header.epoch_wall_ns
        self._urls = context.header.settings.endpoint.urls
        self._payloads = context.log.payloads
        self._phases: dict[int, dict[str, Any]] = {}
        """For each phase, by its index in the log, the metadata that its records share."""
        self._profiling_phases = 0
        self._sessions: dict[int, str] = {}

    def begin(self, phase: LoggedPhase) -> None:
        """Take the next phase of the run."""
        fields: dict[str, Any] = {"benchmark_phase": phase.kind, "phase_index": len(self._phases)}
        if phase.kind == "profiling":
            fields["profiling_index"] = self._profiling_phases
            self._profiling_phases += 1
        self._phases.setdefault(phase.index, {**fields, "phase_name": phase.name, "phase_kind": phase.kind})

    def of(self, record: Record) -> dict[str, Any]:
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


def error_fields(record: Record) -> dict[str, Any] | None:
    """Return the error of a request; None if it succeeded."""
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

"""The fields that identify a request and its error, in the files with a line for each request."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.records.log import LoggedPhase
from penstock.records.record import Record
from penstock.reports.sink import ReportContext

_SESSIONS_KEPT = 8_192
CANCELLATION = {"code": 499, "type": "RequestCancellationError"}
"""Code and type by which tools for AIPerf recognize a cancelled request."""


class RecordMetadata:
    def __init__(self, context: ReportContext) -> None:
        self._epoch = context.header.epoch_wall_ns
        self._urls = [_json(url) for url in context.header.settings.endpoint.urls]
        self._payloads = context.bodies.payloads
        self._phases: dict[int, str] = {}
        """For each phase, by its index in the log, the fields that its records share."""
        self._profiling_phases = 0
        self._sessions: dict[int, str] = {}

    def begin(self, phase: LoggedPhase) -> None:
        """Take the next phase of the run."""
        fields: dict[str, Any] = {"benchmark_phase": phase.kind, "phase_index": len(self._phases)}
        if phase.kind == "profiling":
            fields["profiling_index"] = self._profiling_phases
            self._profiling_phases += 1
        fields |= {"phase_name": phase.name, "phase_kind": phase.kind}
        self._phases.setdefault(phase.index, _json(fields)[1:-1])

    def encode(self, record: Record) -> bytes:
        """Return the fields as JSON. A dictionary would take four times as long."""
        epoch = self._epoch
        start = epoch + record.start
        succeeded = record.failure is None and not record.cancelled
        end = start + record.latency_ns if succeeded else epoch + record.end
        correlation = _json(record.correlation_id)
        session, turn, depth = self._session(record.payload), record.turn, 0
        root, parent = correlation, ""
        if record.root_id is not None:
            session, turn, depth = self._place_in_tree(record)
            root = _json(record.root_id)
            parent = "" if record.parent_id is None else f',"parent_correlation_id":{_json(record.parent_id)}'
        replied = "" if record.first_byte is None else f',"request_ack_ns":{epoch + record.first_byte}'
        cancelled = f'true,"cancellation_time_ns":{epoch + record.end}' if record.cancelled else "false"
        retries = f',"retries":{record.retries}' if record.retries else ""
        redirects = f',"redirects":{record.redirects}' if record.redirects else ""
        digest = f',"body_sha256":"{record.digest.hex()}"' if record.digest else ""
        return (
            f'{{"session_num":{record.number},"x_request_id":{_json(record.request_id)},"x_correlation_id":{correlation}'
            f',"conversation_id":{session},"turn_index":{turn}'
            f',"credit_issued_ns":{epoch + record.issued},"request_start_ns":{start}{replied},"request_end_ns":{end}'
            f',"worker_id":"worker_{record.worker}","record_processor_id":"worker_{record.worker}"'
            f',{self._phases[record.phase]},"was_cancelled":{cancelled},"context_overflow_skip":false,"agent_depth":{depth}'
            f',"root_correlation_id":{root}{parent},"intended_ns":{epoch + record.intended},"url":{self._urls[record.url]}'
            f',"streamed":{"true" if record.streamed else "false"},"coalesced_stamps":{len(record.coalesced)}'
            f'{retries}{redirects},"finish_reasons":{_json(record.finish)}{digest}}}'
        ).encode()

    def _place_in_tree(self, record: Record) -> tuple[str, int, int]:
        """Return the name of the conversation of a record as JSON, the index of its turn there, and its depth in its tree."""
        tree = self._payloads.tree(record.conversation)
        if tree is None:
            return self._session(record.payload), record.turn, 0
        node = tree.nodes[tree.node_of(record.turn)]
        return _json(node.name), record.turn - node.first, node.depth

    def _session(self, payload: int) -> str:
        session = self._sessions.get(payload)
        if session is None:
            if len(self._sessions) >= _SESSIONS_KEPT:
                self._sessions.clear()
            session = self._sessions[payload] = _json(self._payloads.session(payload))
        return session


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def error_fields(record: Record) -> dict[str, Any] | None:
    """Return the error of a request; None if it succeeded."""
    if record.cancelled:
        seconds = (record.end - record.start) / 1e9
        return {**CANCELLATION, "message": f"Cancelled by the client {seconds:.3f} s after it was sent."}
    failure = record.failure
    if failure is None:
        return None
    fields: dict[str, Any] = {} if failure.code is None else {"code": failure.code}
    return {**fields, "type": failure.type, "message": failure.message, "fault": failure.owner}

"""Write `profile_export_raw.jsonl`: one line per request, with its body, its headers and the bytes of its reply.

A stream has an entry for each event, with the lines of the event; any other reply has one entry with its text. `perf_ns` is
the arrival of the read that completed the entry, on the clock of `start_perf_ns`, the start of the request.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from penstock.metrics.metric import Measures
from penstock.records.log import LoggedPhase
from penstock.records.raw_replies import RawReply
from penstock.records.record import Record
from penstock.reports.record_metadata import RecordMetadata, error_fields
from penstock.reports.sink import DraftSink, ReportContext


class RawJsonl(DraftSink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._metadata = RecordMetadata(context)

    def begin(self, phase: LoggedPhase) -> None:
        self._metadata.begin(phase)

    def add(self, record: Record, _measures: Measures) -> None:
        reply = self.context.bodies.raw_reply(record)
        fields: dict[str, Any] = {
            "metadata": orjson.Fragment(self._metadata.encode(record)),
            "start_perf_ns": record.start,
        }
        if reply is not None:
            fields["request_headers"] = dict(reply.headers)
        if record.status:
            fields["status"] = record.status
        fields["responses"] = [] if reply is None else _responses(reply, streamed=record.streamed)
        payload = self._payload(record)
        if payload is not None:
            fields["payload"] = payload
        if error := error_fields(record):
            fields["error"] = error
        self.file.write(orjson.dumps(fields) + b"\n")

    def _payload(self, record: Record) -> orjson.Fragment | str | None:
        """Return the body, as JSON in one line if it is JSON; None if a killed worker has not written it."""
        try:
            body = self.context.bodies.body(record)
        except OSError:
            return None
        try:
            return orjson.Fragment(msgspec.json.format(body, indent=-1))
        except msgspec.DecodeError:
            return body.decode("utf-8", "replace")


def _responses(reply: RawReply, *, streamed: bool) -> list[dict[str, Any]]:
    body = reply.body
    if not body:
        return []
    if not streamed:
        text = body.decode("utf-8", "replace")
        return [{"perf_ns": reply.times[-1], "content_type": reply.content_type, "text": text}]
    return [{"perf_ns": arrived, "packets": _packets(event)} for arrived, event in reply.events()]


def _packets(event: bytes) -> list[dict[str, str]]:
    """Return the lines of an event. A comment is a line without a name."""
    packets = []
    for line in event.removeprefix(b"\xef\xbb\xbf").splitlines():
        if line:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            packets.append({"name": name or "comment", "value": value.removeprefix(" ")})
    return packets

"""The time line of one request, for the page of a run."""

from __future__ import annotations

from typing import Any

from penstock.records.record import Record
from penstock.reports.charts import numbers
from penstock.reports.error_text import one_line

_MOST_STAMPS = 300
_MESSAGE_CHARACTERS = 300
_IDENTITY_CHARACTERS = 200


def request_detail(record: Record, values: dict[str, float]) -> dict[str, Any]:
    """Return the identity, the figures and the parts of a request. Times are in ms from its intended send."""
    origin = record.intended
    detail: dict[str, Any] = {
        "id": record.request_id,
        "session": record.number,
        "turn": record.turn,
        "worker": record.worker,
        "url": record.url,
        "at": record.start,
        "total": _ms(record.end - origin),
        "parts": _parts(record),
        "stamps": numbers([(record.start - origin + stamp) / 1e6 for stamp in _sample(record.stamps)]),
        "chunks": sum(record.pieces),
    }
    for name, tag in (
        ("latency", "request_latency"),
        ("ttft", "time_to_first_token"),
        ("itl", "inter_token_latency"),
        ("tokens", "output_sequence_length"),
        ("input", "input_sequence_length"),
    ):
        if tag in values:
            detail[name] = numbers([values[tag]])[0]
    for name, text in (("reply", record.response_id), ("model", record.model)):
        if text:
            detail[name] = text[:_IDENTITY_CHARACTERS]
    if len(record.stamps) > _MOST_STAMPS:
        detail["stamps_of"] = len(record.stamps)
    if record.failure is not None:
        failure = record.failure
        message = one_line(failure.message)
        if len(message) > _MESSAGE_CHARACTERS:
            message = f"{message[:_MESSAGE_CHARACTERS]}…"
        detail["error"] = {"type": failure.type, "code": failure.code, "message": message, "owner": failure.owner}
    return detail


def _parts(record: Record) -> list[tuple[str, float, float]]:
    """Return the name, the start and the end of each part, in order of time."""
    origin = record.intended
    first = record.start + record.stamps[0] if record.streamed and record.stamps else None
    connected = max(record.issued, record.start - record.connect_ns)
    times = [
        ("waited for an earlier reply" if record.turn else "waited for a slot", record.intended, record.issued),
        ("client delay", record.issued, connected),
        ("connect", connected, record.start),
        ("send", record.start, record.sent),
        ("wait for the server", record.sent, record.first_byte),
        ("first content", record.first_byte, first),
        ("decode" if first is not None else "receive", first if first is not None else record.first_byte, record.end),
    ]
    if record.first_byte is None:
        times[4:] = [("wait for the server", record.sent or record.start, record.end)]
    parts = []
    for name, begin, end in times:
        if begin is not None and end is not None and end > begin:
            parts.append((name, _ms(begin - origin), _ms(end - origin)))
    return parts


def _sample(stamps: list[int]) -> list[int]:
    """Return some of the stamps if there are too many, with the first and the last among them."""
    count = len(stamps)
    if count <= _MOST_STAMPS:
        return stamps
    return [stamps[n * (count - 1) // (_MOST_STAMPS - 1)] for n in range(_MOST_STAMPS)]


def _ms(ns: float) -> float:
    return round(ns / 1e6, 4)

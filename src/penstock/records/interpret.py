"""From exchange to record: what the bytes mean, and when each piece of text arrived.

An event arrived when the read that completed it did. Events of one read share its stamp: they are counted under it, and
no gap is made up between them.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import sha256
from http import HTTPStatus
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.endpoints.base import Endpoint
from penstock.endpoints.reply import Reply
from penstock.records.record import Failure, Record
from penstock.wire.content_encoding import BadCoding, decoded
from penstock.wire.exchange import Exchange
from penstock.wire.server_timing import parse_server_timing

__all__ = ["InFlight", "read"]

_STATUSES = frozenset(HTTPStatus)
_STREAM = (b"data:", b"event:", b"id:", b": ")
"""How a stream of events begins, and JSON does not."""
_UNNAMED = "Streams of events whose Content-Type is not text/event-stream"


class InFlight(NamedTuple):
    """What goes with an exchange: its record, begun by the driver when it sends, and the conversation, for the driver."""

    record: Record
    session: Any = None


def read(exchange: Exchange, endpoint: Endpoint, epoch: int) -> tuple[Record, Reply | None]:
    """The record, and the reply as the dialect read it, for whoever carries the conversation on."""
    ticket: InFlight = exchange.tag
    record = ticket.record
    _outline(record, exchange, epoch)
    if exchange.status == 0:
        return record, None
    try:
        return record, _understand(record, exchange, endpoint)
    except Exception as error:  # one reply that we cannot read must not take the run with it
        text = f"Penstock could not read the reply ({type(error).__name__}: {error}); this is a fault of its own."
        record.failure = record.failure or Failure("UnreadableReply", text, "penstock")
        return record, None


def _outline(record: Record, exchange: Exchange, epoch: int) -> None:
    """Everything but what the reply says."""
    record.start = exchange.start - epoch if exchange.start >= 0 else record.issued
    record.end = max(exchange.end - epoch, record.start)
    if exchange.sent >= 0:
        record.sent = exchange.sent - epoch
        record.digest = sha256(memoryview(exchange.data)[len(exchange.data) - record.bytes_sent :]).digest()
    if exchange.first_byte >= 0:
        record.first_byte = exchange.first_byte - epoch
    record.connect_ns = exchange.connect_ns
    record.reused = exchange.reused
    record.retries = exchange.retries
    record.status = exchange.status
    record.bytes_received = exchange.bytes_received
    record.reads = len(exchange.times)
    record.cancelled = exchange.cancelled
    if exchange.error is not None:
        kind, message, owner = exchange.error
        record.failure = Failure(kind, message, owner, exchange.status or None)


def _understand(record: Record, exchange: Exchange, endpoint: Endpoint) -> Reply | None:
    """Put what the reply says into the record."""
    body = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
    content_type, coding = _content(record, exchange)
    good = 200 <= exchange.status < 300
    if coding != b"identity":
        try:
            body = decoded(coding, body)
        except BadCoding as trouble:
            # The status says more of an error than a body that nobody can read.
            bad = Failure("BadEncoding", str(trouble), "server")
            record.failure = record.failure or (bad if good else _http_failure(exchange, str(trouble)))
            return None
    if not good:
        text = body[:2000].decode("utf-8", "replace").strip()
        record.failure = record.failure or _http_failure(exchange, text)
        return None
    named = content_type.startswith(b"text/event-stream")
    if named or body[:16].lstrip().startswith(_STREAM):
        record.streamed = True
        timed = len(exchange.times) > 1 and coding == b"identity"
        reply = endpoint.read_stream(body, timed=timed)
        if reply.texts:
            _place(record, exchange, reply, timed=timed)
        if record.failure is None:
            record.failure = reply.failure or _stream_failure(body, reply)
    else:
        reply = endpoint.read_body(body)
        if record.failure is None:
            record.failure = reply.failure or _body_failure(reply)
    record.outputs = reply.outputs
    record.reasonings = reply.reasonings
    record.finish = reply.finish
    record.usage = reply.usage
    record.model = reply.model
    record.response_id = reply.id
    record.warnings = reply.warnings
    if record.streamed and not named:
        record.warnings = {**record.warnings, _UNNAMED: 1}
    return reply


def _place(record: Record, exchange: Exchange, reply: Reply, *, timed: bool) -> None:
    """Give each piece of content the arrival time of the read in which its event was complete."""
    times = exchange.times
    if timed:
        stamps: list[int] = []
        pieces: list[int] = []
        firsts: list[int] = []
        reads: list[int] = []
        placed, total = 0, len(reply.texts)
        for read, end in enumerate(_read_ends(exchange)):
            there = bisect_right(reply.ends, end, placed)
            if there == placed:
                continue
            if stamps and times[read] <= stamps[-1]:
                pieces[-1] += there - placed
            else:
                stamps.append(times[read])
                pieces.append(there - placed)
                firsts.append(placed)
                reads.append(read)
            placed = there
            if placed == total:
                break
    else:
        # One read; or a compressed body, whose events cannot be found in the reads that brought it.
        stamps, pieces, firsts = [times[-1]], [len(reply.texts)], [0]
        reads = [len(times) - 1]
    start = exchange.start
    record.stamps = [stamp - start for stamp in stamps]
    record.pieces = pieces
    if not timed and len(times) > 1:
        record.coalesced, record.first_coalesced = 1, True
    elif exchange.coarse:
        coarse = set(exchange.coarse)
        record.coalesced = sum(1 for read in reads if read in coarse)
        record.first_coalesced = reads[0] in coarse
    record.head_outputs = reply.texts[0] if pieces[0] == 1 else "".join(reply.texts[: pieces[0]])
    if reply.reasoning is None:
        record.first_output = 0
    elif False in reply.reasoning:
        visible = reply.reasoning.index(False)
        record.first_output = max(i for i, first in enumerate(firsts) if first <= visible)


def _read_ends(exchange: Exchange) -> list[int]:
    """For each read, how many bytes of the body were there after it."""
    ends = [0, *accumulate(map(len, exchange.pieces))]
    return [ends[count] for count in exchange.counts]


def _content(record: Record, exchange: Exchange) -> tuple[bytes, bytes]:
    """(content type, content coding) of the reply, in lower case."""
    kind, coding = b"", b"identity"
    for name, value in exchange.headers:
        if name == b"content-type":
            kind = value.lower()
        elif name == b"content-encoding":
            coding = value.strip().lower() or coding
        elif name == b"server-timing":
            _split_time(record, value)
    return kind, coding


def _split_time(record: Record, value: bytes) -> None:
    """From a gateway that names its total and what it waited for its upstream; any other Server-Timing says nothing here."""
    durations = parse_server_timing(value.decode("latin-1"))
    total, upstream = durations.get("total"), durations.get("upstream")
    if total is not None and upstream is not None:
        record.upstream_ms = upstream + durations.get("connect", 0.0)
        record.gateway_ms = max(0.0, total - record.upstream_ms)


def _http_failure(exchange: Exchange, text: str) -> Failure:
    """Its type is the phrase of the status, as AIPerf's is; the server's own wording would make many types of one."""
    status = exchange.status
    kind = HTTPStatus(status).phrase if status in _STATUSES else "HTTPError"
    return Failure(kind, text or f"HTTP status {status} without a body.", "server", status)


def _stream_failure(body: bytes, reply: Reply) -> Failure | None:
    if not body.strip():
        return Failure("EmptyStream", "The stream ended without a single event.", "server")
    if not reply.done:
        return Failure(
            "TruncatedStream",
            "The stream ended with neither a finish reason nor an end mark: it was cut short.",
            "server",
        )
    if not reply.texts:
        return Failure("NoContent", "The stream ended properly but carried no content.", "server")
    return None


def _body_failure(reply: Reply) -> Failure | None:
    if not reply.outputs and not reply.reasonings and not reply.vectors:
        return Failure("NoContent", "The reply is complete but carries no content.", "server")
    return None

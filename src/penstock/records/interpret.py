"""Interprets an exchange: reads the reply's bytes and completes the record of the request.

An event arrives with the network read that completes it. Events of one read have the same stamp.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import sha256
from http import HTTPStatus
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from penstock.endpoints.base import Endpoint
from penstock.endpoints.reply import Reply
from penstock.records.record import Failure, Record
from penstock.secrets import redact_url
from penstock.wire.content_encoding import BadCoding, decoded_pieces
from penstock.wire.exchange import Exchange
from penstock.wire.server_timing import parse_server_timing

_STATUSES = frozenset(HTTPStatus)
_REDIRECTS = (301, 302, 303, 307, 308)
_SSE_STARTS = (b"data:", b"event:", b"id:", b": ")
"""First bytes of a stream of events. JSON begins with none of them."""
_WRONG_CONTENT_TYPE = "Streams of events whose Content-Type is not text/event-stream"


class InFlight(NamedTuple):
    """The tag of an exchange: its record, created when the request is sent, and the worker's conversation."""

    record: Record
    session: Any = None


def interpret(exchange: Exchange, endpoint: Endpoint, epoch: int) -> tuple[Record, Reply | None]:
    """Complete the record of an exchange. Return it and the parsed reply, which the next turn may need."""
    in_flight: InFlight = exchange.tag
    record = in_flight.record
    _copy_exchange(record, exchange, epoch)
    if exchange.status == 0:
        return record, None
    try:
        return record, _read_reply(record, exchange, endpoint)
    except Exception as error:  # one unreadable reply must not end the run
        text = f"Penstock could not read the reply ({type(error).__name__}: {error}); this is an error of Penstock."
        record.failure = record.failure or Failure("UnreadableReply", text, "penstock")
        return record, None


def _copy_exchange(record: Record, exchange: Exchange, epoch: int) -> None:
    """Copy times, sizes and the network error from the exchange to its record."""
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
    record.redirects = 0 if exchange.redirect is None else exchange.redirect.hops
    record.status = exchange.status
    record.bytes_received = exchange.bytes_received
    record.reads = len(exchange.times)
    record.cancelled = exchange.cancelled
    record.rtt_us, record.retransmits = exchange.rtt_us, exchange.retransmits
    if exchange.error is not None:
        type_, message, owner = exchange.error
        record.failure = Failure(type_, message, owner, exchange.status or None)


def _read_reply(record: Record, exchange: Exchange, endpoint: Endpoint) -> Reply | None:
    """Parse the reply and complete the record with its content. Return None if there is no readable reply."""
    content_type, coding = _read_headers(record, exchange)
    success = 200 <= exchange.status < 300
    if coding != b"identity" and exchange.pieces:
        try:
            exchange.pieces = decoded_pieces(coding, exchange.pieces)
        except BadCoding as error:
            # The status of a failed request says more than its unreadable body.
            failure = Failure("BadEncoding", str(error), "server") if success else _http_failure(exchange, str(error))
            record.failure = record.failure or failure
            return None
    body = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
    if not success:
        text = body[:2000].decode("utf-8", "replace").strip()
        record.failure = record.failure or _http_failure(exchange, text)
        return None
    declared = content_type.startswith(b"text/event-stream")
    if declared or body[:16].lstrip().startswith(_SSE_STARTS):
        record.streamed = True
        timed = len(exchange.times) > 1
        reply = endpoint.read_stream(body, timed=timed)
        if reply.texts:
            _set_stamps(record, exchange, reply, timed=timed)
        if record.failure is None:
            record.failure = reply.failure or _stream_failure(body, reply)
    else:
        reply = endpoint.read_body(body)
        if record.failure is None:
            record.failure = reply.failure or _body_failure(reply)
    record.outputs = reply.outputs
    record.reasonings = reply.reasonings
    record.finish = reply.finish
    record.usage = usage = reply.usage
    if usage is not None and usage.completion == 0 and (any(reply.outputs) or any(reply.reasonings)):
        # It came before the text, as in the first chunk of some servers, and does not count it.
        record.usage = msgspec.structs.replace(usage, completion=None, total=None)
    record.model = reply.model
    record.response_id = reply.id
    record.warnings = reply.warnings
    record.images = reply.images or record.images
    if record.streamed and not declared:
        record.warnings = {**record.warnings, _WRONG_CONTENT_TYPE: 1}
    return reply


def _set_stamps(record: Record, exchange: Exchange, reply: Reply, *, timed: bool) -> None:
    """Give each piece of content the arrival time of the read that completed its event."""
    times = exchange.times
    if timed:
        stamps: list[int] = []
        pieces: list[int] = []
        firsts: list[int] = []
        reads: list[int] = []
        done, total = 0, len(reply.texts)
        for read, end in enumerate(read_ends(exchange)):
            arrived = bisect_right(reply.ends, end, done)
            if arrived == done:
                continue
            if stamps and times[read] <= stamps[-1]:
                pieces[-1] += arrived - done
            else:
                stamps.append(times[read])
                pieces.append(arrived - done)
                firsts.append(done)
                reads.append(read)
            done = arrived
            if done == total:
                break
    else:
        stamps, pieces, firsts = [times[-1]], [len(reply.texts)], [0]
        reads = [len(times) - 1]
    start = exchange.start
    record.stamps = [stamp - start for stamp in stamps]
    record.pieces = pieces
    if exchange.coalesced:
        bounds = dict(zip(exchange.coalesced, exchange.earliest, strict=True))
        for index, read in enumerate(reads):
            if read in bounds:
                record.coalesced.append(index)
                record.earliest.append(max(0, bounds[read] - start))
    record.head_outputs = reply.texts[0] if pieces[0] == 1 else "".join(reply.texts[: pieces[0]])
    record.head_tokens = reply.usage_by_piece.get(pieces[0])
    if reply.reasoning is None:
        record.first_output = 0
    elif False in reply.reasoning:
        visible = reply.reasoning.index(False)
        record.first_output = max(i for i, first in enumerate(firsts) if first <= visible)


def read_ends(exchange: Exchange) -> list[int]:
    """Return, for each read, the number of body bytes that had arrived after it."""
    ends = [0, *accumulate(map(len, exchange.pieces))]
    return [ends[count] for count in exchange.counts]


def _read_headers(record: Record, exchange: Exchange) -> tuple[bytes, bytes]:
    """Return the content type and the content coding in lower case; set the gateway times of the record."""
    content_type, coding = b"", b"identity"
    for name, value in exchange.headers:
        if name == b"content-type":
            content_type = value.lower()
        elif name == b"content-encoding":
            coding = value.strip().lower() or coding
        elif name == b"server-timing":
            _set_gateway_times(record, value)
    return content_type, coding


def _set_gateway_times(record: Record, value: bytes) -> None:
    """Read the Server-Timing header of a gateway, which has `total` and `upstream`; ignore any other."""
    durations = parse_server_timing(value.decode("latin-1"))
    total, upstream = durations.get("total"), durations.get("upstream")
    if total is not None and upstream is not None:
        record.upstream_ms = upstream + durations.get("connect", 0.0)
        record.gateway_ms = max(0.0, total - record.upstream_ms)


def _http_failure(exchange: Exchange, text: str) -> Failure:
    """Return the failure for an HTTP status. Its type is the standard phrase of the status, as in AIPerf, because servers send
    different phrases."""
    status = exchange.status
    type_ = HTTPStatus(status).phrase if status in _STATUSES else "HTTPError"
    if status in _REDIRECTS and (location := exchange.header(b"location")):
        text = f"{_redirect_text(exchange, location)} {text}".strip()
    return Failure(type_, text or f"HTTP status {status} without a body.", "server", status)


def _redirect_text(exchange: Exchange, location: bytes) -> str:
    url = redact_url(location[:500].decode("latin-1"))
    if exchange.status not in (307, 308):
        reason = "only redirects with status 307 and 308 are followed, because they keep the method and the body"
    elif exchange.redirect is not None and exchange.redirect.hops > 1:
        reason = f"{exchange.redirect.hops} redirects were followed before it"
    else:
        reason = "--follow-cross-origin-redirects follows redirects to other servers"
    return f"The server redirects to {url}, which was not followed; {reason}."


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

"""Interpretation of exchanges: content, arrival times and failures of the reply."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.endpoints.base import endpoint_named as endpoint
from penstock.records.interpret import InFlight, interpret
from penstock.records.record import Record
from penstock.wire.exchange import Exchange, WireError

CHAT = endpoint("chat")
MS = 1_000_000
EPOCH = 1000 * MS
START = EPOCH + 500 * MS
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")


def event(text: str, **choice: Any) -> bytes:
    data = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def thought(text: str) -> bytes:
    return event("", delta={"reasoning_content": text})


ROLE = event("", delta={"role": "assistant", "content": ""})
STOP = event("", finish_reason="stop")
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices":[{"index":0,"message":{"content":"Hello"},"finish_reason":"stop"}]}'


def in_flight() -> InFlight:
    record = Record(0, 0, 0, 0, 0, 0, 0, "r", "c", START - 3 * MS - EPOCH, START - 2 * MS - EPOCH)
    record.bytes_sent, record.requested_output = 2, 7
    return InFlight(record)


def exchange(
    *reads: tuple[int, bytes], headers: tuple[tuple[bytes, bytes], ...] = (SSE,), status: int = 200, **changes: Any
) -> Exchange:
    """Build an exchange; each read is (ms after the start, bytes of the body)."""
    built = Exchange(b"POST / HTTP/1.1\r\n\r\n{}", lambda _: None, in_flight())
    built.start, built.sent = START, START + MS
    built.status, built.headers = status, list(headers)
    for ms, data in reads:
        if data:
            built.pieces.append(data)
        built.times.append(START + ms * MS)
        built.counts.append(len(built.pieces))
    built.first_byte = built.times[0] if built.times else -1
    built.end = built.times[-1] if built.times else START + 9 * MS
    built.bytes_received = sum(map(len, built.pieces))
    for name, value in changes.items():
        setattr(built, name, value)
    return built


def record_of(built: Exchange) -> Record:
    return interpret(built, CHAT, EPOCH)[0]


def in_ms(record: Record) -> list[float]:
    return [stamp / MS for stamp in record.stamps]


# -- arrival times -------------------------------------------------------------------------------------------------------------


def test_each_piece_has_the_arrival_time_of_its_read():
    record = record_of(
        exchange((50, ROLE), (60, event("a")), (70, event("b")), (85, event("c")), (90, STOP), (91, USAGE + DONE))
    )
    assert in_ms(record) == [60, 70, 85]
    assert record.pieces == [1, 1, 1]
    assert record.outputs == ["abc"]
    assert record.head_outputs == "a"
    assert record.finish == ["stop"]
    assert record.failure is None
    assert record.streamed
    assert (record.reads, record.coalesced, record.first_output) == (6, [], 0)


def test_event_arrives_with_its_last_byte():
    a, b = event("a"), event("b")
    record = record_of(exchange((10, ROLE + a[:9]), (20, a[9:] + b[:-1]), (30, b[-1:] + STOP + DONE)))
    assert in_ms(record) == [20, 30]


def test_events_of_one_read_share_its_stamp():
    record = record_of(exchange((10, ROLE), (20, event("a") + event("b")), (30, event("c")), (40, STOP + DONE)))
    assert in_ms(record) == [20, 30]
    assert record.pieces == [2, 1]
    assert record.head_outputs == "ab"


def test_reads_with_equal_stamps_are_merged():
    record = record_of(
        exchange((10, ROLE), (20, event("a")), (20, event("b")), (20, event("c")), (25, event("d") + DONE))
    )
    assert in_ms(record) == [20, 25]
    assert record.pieces == [3, 1]


def test_reply_in_one_read_has_one_stamp():
    record = record_of(exchange((30, ROLE + event("a") + event("b") + STOP + DONE)))
    assert (in_ms(record), record.pieces) == ([30], [2])


def test_reads_without_content_have_no_stamp():
    record = record_of(
        exchange((5, b""), (10, b": ping\n\n"), (20, event("a")), (30, b": ping\n\n"), (40, STOP + DONE))
    )
    assert in_ms(record) == [20]
    assert record.reads == 5


def test_coalesced_reads_with_content_keep_their_earliest_arrival():
    reads = [(10, ROLE), (20, event("a") + event("b")), (30, event("c")), (40, event("d")), (50, STOP + DONE)]
    earliest = [START + ms * MS for ms in (-1, 12, 31, 42)]
    record = record_of(exchange(*reads, coalesced=[0, 1, 3, 4], earliest=earliest))
    assert (record.coalesced, record.earliest) == ([0, 2], [12 * MS, 31 * MS])
    record = record_of(exchange(*reads, coalesced=[0, 3], earliest=earliest[:2]))
    assert (record.coalesced, record.earliest) == ([2], [12 * MS])


def test_first_output_is_the_first_content_that_is_not_reasoning():
    reads = [(10, thought("a")), (20, thought("b")), (30, event("c")), (40, event("d") + STOP + DONE)]
    record = record_of(exchange(*reads))
    assert in_ms(record) == [10, 20, 30, 40]
    assert record.first_output == 2
    assert (record.outputs, record.reasonings) == (["cd"], ["ab"])


def test_first_output_may_share_a_stamp_with_reasoning():
    record = record_of(exchange((10, thought("a") + event("b")), (20, event("c") + STOP + DONE)))
    assert record.first_output == 0


def test_reply_of_only_reasoning_has_no_first_output():
    record = record_of(exchange((10, thought("a")), (20, thought("b") + STOP + DONE)))
    assert record.first_output is None
    assert record.failure is None


@given(
    texts=st.lists(st.text(max_size=4), min_size=1, max_size=10),
    positions=st.lists(st.integers(0, 2000), max_size=15),
    gaps=st.lists(st.integers(0, 3), min_size=1, max_size=16),
)
def test_each_piece_has_the_first_read_that_contains_its_end_however_the_body_is_split(texts, positions, gaps):
    events = [ROLE, *[event(text) for text in texts], STOP, DONE]
    body = b"".join(events)
    edges = sorted({0, len(body), *[position % len(body) for position in positions]})
    times = list(accumulate(gaps[i % len(gaps)] for i in range(len(edges) - 1)))
    record = record_of(exchange(*[(ms, body[a:b]) for ms, (a, b) in zip(times, pairwise(edges), strict=True)]))
    expected: dict[int, int] = {}
    ends = list(accumulate(map(len, events)))
    for text, end in zip(texts, ends[1:], strict=False):
        if text:
            ms = next(time for time, edge in zip(times, edges[1:], strict=True) if edge >= end)
            expected[ms] = expected.get(ms, 0) + 1
    assert dict(zip(in_ms(record), record.pieces, strict=True)) == expected
    assert record.outputs == (["".join(texts)] if any(texts) else [])


# -- content -------------------------------------------------------------------------------------------------------------


def test_record_has_the_times_and_sizes_of_its_request():
    record = record_of(exchange((10, ANSWER), headers=(JSON,), connect_ns=5, reused=False, retries=1))
    assert (record.intended, record.issued, record.start) == (497 * MS, 498 * MS, 500 * MS)
    assert (record.sent, record.first_byte, record.end) == (501 * MS, 510 * MS, 510 * MS)
    assert (record.connect_ns, record.reused, record.retries) == (5, False, 1)
    assert (record.requested_output, record.bytes_sent, record.bytes_received) == (7, 2, len(ANSWER))


def test_unstreamed_reply_has_no_stamps():
    record = record_of(exchange((10, ANSWER[:9]), (20, ANSWER[9:]), headers=(JSON,)))
    assert (record.streamed, record.stamps, record.outputs) == (False, [], ["Hello"])


@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream;charset=UTF-8"])
def test_event_stream_content_type_marks_the_record_as_streamed(kind):
    assert record_of(exchange((10, event("a") + DONE), headers=((b"content-type", kind),))).streamed


@pytest.mark.parametrize("headers", [(), (JSON,), ((b"Content-Type", b"text/plain"),)])
def test_events_with_another_content_type_are_read_with_a_warning(headers):
    record = record_of(exchange((10, event("a")), (20, event("b") + DONE), headers=headers))
    assert record.failure is None
    assert record.streamed
    assert in_ms(record) == [10, 20]
    assert record.warnings == {"Streams of events whose Content-Type is not text/event-stream": 1}


# -- content codings ----------------------------------------------------------------------------------------------------------


def content_encoding(name: bytes, *headers: tuple[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return (*headers, (b"content-encoding", name))


@pytest.mark.parametrize(
    ("name", "compress"), [(b"gzip", gzip.compress), (b"x-gzip", gzip.compress), (b"deflate", zlib.compress)]
)
def test_compressed_reply_is_read(name, compress):
    assert record_of(exchange((10, compress(ANSWER)), headers=content_encoding(name, JSON))).outputs == ["Hello"]


def compressed_parts(*parts: bytes, wbits: int) -> list[bytes]:
    """Compress each part so that it can be decompressed when it arrives."""
    compressor = zlib.compressobj(wbits=wbits)
    flushed = [compressor.compress(part) + compressor.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*flushed[:-1], flushed[-1] + compressor.flush()]


@pytest.mark.parametrize(("name", "wbits"), [(b"gzip", 31), (b"deflate", 15)])
def test_events_of_a_compressed_stream_have_the_times_of_their_reads(name, wbits):
    first, second, last = compressed_parts(ROLE + event("a"), event("b"), event("c") + STOP + DONE, wbits=wbits)
    reads = (10, first), (20, second[:5]), (30, second[5:]), (40, last)
    record = record_of(exchange(*reads, headers=content_encoding(name, SSE), coalesced=[2], earliest=[START + 25 * MS]))
    assert in_ms(record) == [10, 30, 40]
    assert record.pieces == [1, 1, 1]
    assert (record.coalesced, record.earliest) == ([1], [25 * MS])
    assert record.outputs == ["abc"]


def test_compressed_stream_in_several_gzip_members_keeps_its_times():
    members = gzip.compress(event("a")), gzip.compress(event("b") + STOP + DONE)
    split = len(members[0]) + 3
    body = b"".join(members)
    record = record_of(exchange((10, body[:split]), (20, body[split:]), headers=content_encoding(b"gzip", SSE)))
    assert in_ms(record) == [10, 20]


def test_identity_coding_keeps_the_arrival_times():
    record = record_of(exchange((10, event("a")), (20, event("b") + DONE), headers=content_encoding(b"identity", SSE)))
    assert in_ms(record) == [10, 20]


@pytest.mark.parametrize(
    ("name", "body"),
    [(b"gzip", ANSWER), (b"gzip", gzip.compress(ANSWER, mtime=0)[:-4]), (b"br", b"\x0b\x02\x80"), (b"zstd", b"x")],
)
def test_undecodable_reply_is_the_servers_error(name, body):
    failure = record_of(exchange((10, body), headers=content_encoding(name, JSON))).failure
    assert failure is not None
    assert (failure.type, failure.owner) == ("BadEncoding", "server")
    assert name.decode() in failure.message


# -- failures ---------------------------------------------------------------------------------------------------------

LOST = WireError("ConnectionLost", "The server closed the connection in the middle of its reply.", "server")


def test_truncated_stream_keeps_its_content_and_the_network_error():
    record = record_of(exchange((10, ROLE + event("a")), (20, event("b")), error=LOST))
    assert record.failure is not None
    assert (record.failure.type, record.failure.message, record.failure.code) == (LOST.type, LOST.message, 200)
    assert in_ms(record) == [10, 20]
    assert record.outputs == ["ab"]


def test_record_of_a_refused_connection_has_no_times_of_a_reply():
    built = exchange(status=0, headers=(), start=-1, sent=-1, error=WireError("ConnectionRefused", "No.", "server"))
    record = record_of(built)
    assert record.failure is not None
    assert (record.failure.type, record.failure.code) == ("ConnectionRefused", None)
    assert record.start == record.issued
    assert record.end >= record.start
    assert (record.sent, record.first_byte, record.status) == (None, None, 0)


@pytest.mark.parametrize(
    ("status", "kind", "body", "message"),
    [
        (500, "Internal Server Error", b'{"error":{"message":"boom"}}', '{"error":{"message":"boom"}}'),
        (429, "Too Many Requests", b"slow down\n", "slow down"),
        (404, "Not Found", b"", "HTTP status 404 without a body."),
        (302, "Found", b"", "HTTP status 302 without a body."),
        (503, "Service Unavailable", b"x" * 5000, "x" * 2000),
        (502, "Bad Gateway", b"\xff\xfe", "��"),
        (599, "HTTPError", b"what?", "what?"),
    ],
)
def test_http_error_has_the_body_as_message(status, kind, body, message):
    failure = record_of(exchange((10, body), status=status, headers=(JSON,))).failure
    assert failure is not None
    assert (failure.type, failure.owner, failure.code, failure.message) == (kind, "server", status, message)


def test_undecodable_http_error_keeps_its_status():
    headers = (JSON, (b"content-encoding", b"zstd"))
    failure = record_of(exchange((10, b"what is this"), status=503, headers=headers)).failure
    assert failure is not None
    assert (failure.type, failure.code) == ("Service Unavailable", 503)
    assert "encoded as 'zstd'" in failure.message
    failure = record_of(exchange((10, b"what is this"), headers=headers)).failure
    assert failure is not None
    assert failure.type == "BadEncoding"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "EmptyStream"),
        (b"\n\n", "EmptyStream"),
        (ROLE, "TruncatedStream"),
        (ROLE + event("a"), "TruncatedStream"),
        (ROLE + event("a") + b": bye\n\n", "TruncatedStream"),
        (ROLE + STOP + DONE, "NoContent"),
        (DONE, "NoContent"),
        (ROLE + event("a") + b"data: {oops\n\n" + STOP + DONE, "MalformedEvent"),
        (ROLE + event("a") + b'data: {"error":{"message":"no"}}\n\n' + DONE, "ErrorObject"),
        (ROLE + event("a") + b"event: error\ndata: no\n\n" + DONE, "ErrorEvent"),
    ],
)
def test_invalid_stream_is_a_failure(body, kind):
    failure = record_of(exchange((10, body[: len(body) // 2]), (20, body[len(body) // 2 :]))).failure
    assert failure is not None
    assert (failure.type, failure.owner) == (kind, "server")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "EmptyReply"),
        (b"<html>", "MalformedJSON"),
        (b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', "NoContent"),
        (b'{"error":{"message":"no"}}', "ErrorObject"),
    ],
)
def test_invalid_body_is_a_failure(body, kind):
    failure = record_of(exchange((10, body), headers=(JSON,))).failure
    assert failure is not None
    assert failure.type == kind


def test_body_of_200_megabytes_is_joined_once():
    text = "x" * 1000
    body = ANSWER.replace(b"Hello", text.encode() * 200_000)
    pieces = [(n, body[offset : offset + 65536]) for n, offset in enumerate(range(0, len(body), 65536))]
    record = record_of(exchange(*pieces, headers=(JSON,)))
    assert len(record.outputs[0]) == 200_000_000


def test_first_tokens_are_known_if_every_chunk_has_usage() -> None:
    def chunk(text: str, completion: int) -> bytes:
        data = json.loads(event(text).removeprefix(b"data: "))
        data["usage"] = {"prompt_tokens": 3, "completion_tokens": completion}
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    reads = (10, ROLE + chunk("a b", 2) + chunk("c", 3)), (20, chunk("d e", 5)), (30, STOP + DONE)
    assert interpret(exchange(*reads), CHAT, EPOCH)[0].head_tokens == 3
    reads = (10, ROLE + event("a b")), (20, event("c")), (30, STOP + USAGE + DONE)
    assert interpret(exchange(*reads), CHAT, EPOCH)[0].head_tokens is None


def test_usage_that_comes_before_the_text_does_not_count_it() -> None:
    first = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3}}\n\n'
    usage = record_of(exchange((10, ROLE + first), (20, event("a b")), (30, STOP + DONE))).usage
    assert usage is not None
    assert (usage.prompt, usage.completion, usage.total) == (3, None, None)

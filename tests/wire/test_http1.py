"""The HTTP reader: the result does not depend on how the bytes are split."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.http1 import ProtocolError, ResponseReader, request_head


class Parsed(NamedTuple):
    status: int
    body: bytes
    complete: bool
    """The end of the reply is known without the end of the connection."""
    reusable: bool
    whole_at_eof: bool
    """The end of the connection would be a valid end of the reply."""


def read(*pieces: bytes) -> Parsed:
    reader = ResponseReader()
    for piece in pieces:
        reader.feed(piece)
    return Parsed(reader.status, b"".join(reader.pieces), reader.complete, reader.reusable, reader.eof())


def split_at(data: bytes, positions: list[int]) -> list[bytes]:
    edges = [0, *sorted(positions), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def reply(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


WHOLE = {
    "content-length": (
        reply("HTTP/1.1 200 OK\nContent-Length: 5", b"hello"),
        Parsed(200, b"hello", True, True, False),
    ),
    "content-length zero": (reply("HTTP/1.1 200 OK\nContent-Length: 0"), Parsed(200, b"", True, True, False)),
    "chunked": (
        reply("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"),
        Parsed(200, b"hello!", True, True, False),
    ),
    "chunked with extensions and trailers": (
        reply("HTTP/1.1 200 OK\ntransfer-encoding: Chunked", b"5;a=b\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n"),
        Parsed(200, b"hello", True, True, False),
    ),
    "connection close": (
        reply("HTTP/1.1 200 OK\nConnection: close\nContent-Length: 2", b"hi"),
        Parsed(200, b"hi", True, False, False),
    ),
    "HTTP/1.0 with keep-alive": (
        reply("HTTP/1.0 200 OK\nConnection: keep-alive\nContent-Length: 2", b"hi"),
        Parsed(200, b"hi", True, True, False),
    ),
    "HTTP/1.0 without": (
        reply("HTTP/1.0 200 OK\nContent-Length: 2", b"hi"),
        Parsed(200, b"hi", True, False, False),
    ),
    "204": (reply("HTTP/1.1 204 No Content"), Parsed(204, b"", True, True, False)),
    "304 that declares a length": (
        reply("HTTP/1.1 304 Not Modified\nContent-Length: 20"),
        Parsed(304, b"", True, True, False),
    ),
    "an error": (
        reply("HTTP/1.1 503 Service Unavailable\nContent-Length: 4", b"busy"),
        Parsed(503, b"busy", True, True, False),
    ),
    "interim replies before the real one": (
        reply("HTTP/1.1 100 Continue")
        + reply("HTTP/1.1 103 Early Hints\nLink: </style.css>\nContent-Length: 99")
        + reply("HTTP/1.1 200 OK\nContent-Length: 2", b"hi"),
        Parsed(200, b"hi", True, True, False),
    ),
    "no reason phrase": (reply("HTTP/1.1 200\nContent-Length: 2", b"hi"), Parsed(200, b"hi", True, True, False)),
    "until the connection ends": (
        reply("HTTP/1.1 200 OK\nContent-Type: text/plain", b"as long as it lasts"),
        Parsed(200, b"as long as it lasts", False, False, True),
    ),
    "a coding other than chunked lasts until the connection ends": (
        reply("HTTP/1.1 200 OK\nTransfer-Encoding: gzip", b"abc"),
        Parsed(200, b"abc", False, False, True),
    ),
}

each_reply = pytest.mark.parametrize(("data", "expected"), WHOLE.values(), ids=WHOLE.keys())


@each_reply
def test_reply_in_one_piece_is_parsed(data, expected):
    assert read(data) == expected


@each_reply
def test_reply_split_at_any_byte_gives_the_same_result(data, expected):
    for position in range(1, len(data)):
        assert read(data[:position], data[position:]) == expected, position


@each_reply
def test_reply_fed_byte_by_byte_gives_the_same_result(data, expected):
    assert read(*[data[i : i + 1] for i in range(len(data))]) == expected


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    positions=st.lists(st.integers(0, 400), max_size=12),
    chunked=st.booleans(),
)
def test_any_body_split_anywhere_is_parsed(chunks, positions, chunked):
    body = b"".join(chunks)
    if chunked:
        framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        data = reply("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", framed)
    else:
        data = reply(f"HTTP/1.1 200 OK\nContent-Length: {len(body)}", body)
    assert read(*split_at(data, [position % (len(data) + 1) for position in positions])) == Parsed(
        200, body, True, True, False
    )


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6))
def test_body_until_the_end_of_the_connection_keeps_every_byte(pieces):
    head = reply("HTTP/1.1 200 OK\nServer: x")
    assert read(head, *pieces) == Parsed(200, b"".join(pieces), False, False, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        reply("HTTP/1.1 100 Continue"),
        reply("HTTP/1.1 200 OK\nContent-Length: 5", b"hell"),
        reply("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n"),
        reply("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n0\r\nX-Sum: 7\r\n"),
    ],
)
def test_end_of_connection_inside_a_reply_is_not_a_valid_end(data):
    parsed = read(*([data] if data else []))
    assert not parsed.complete
    assert not parsed.whole_at_eof


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"<html>hello</html>",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        reply("HTTP/1.1 200 OK\nContent-Length: -1"),
        reply("HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 3", b"hi"),
        reply("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"zz\r\n"),
        reply("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: upgrade", b"\x81\x05hello"),
    ],
)
def test_invalid_http_is_refused(data):
    with pytest.raises(ProtocolError):
        read(data)


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_raise_nothing_but_protocol_errors(noise):
    with contextlib.suppress(ProtocolError):
        read(noise)


@pytest.mark.parametrize(
    "excess",
    [b"garbage", reply("HTTP/1.1 500 Oops\nContent-Length: 2", b"no"), reply("HTTP/1.1 408 Request Timeout")],
)
@pytest.mark.parametrize("apart", [False, True])
def test_bytes_after_a_complete_reply_prevent_reuse_but_keep_the_reply(excess, apart):
    data = reply("HTTP/1.1 200 OK\nContent-Length: 2", b"hi")
    pieces = [data, excess] if apart else [data + excess]
    assert read(*pieces) == Parsed(200, b"hi", True, False, False)


def test_reader_parses_consecutive_replies():
    reader = ResponseReader()
    for number in range(3):
        reader.feed(reply(f"HTTP/1.1 20{number} OK\nX-Number: {number}\nContent-Length: 1", b"%d" % number))
        assert (reader.status, reader.pieces, reader.complete) == (200 + number, [b"%d" % number], True)
        assert reader.headers == [(b"x-number", b"%d" % number), (b"content-length", b"1")]
        reader.reset()
        assert not reader.started


def test_request_head_is_encoded_as_sent():
    head = request_head("POST", "/v1/chat/completions", "localhost:8000", [("User-Agent", "x"), ("X-Name", "café")])
    assert head == (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: x\r\nX-Name: caf\xe9\r\n"
    )

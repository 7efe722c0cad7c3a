"""HTTP at the level of bytes, over a socket to a server process."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from typing import Any

import pytest

from support.mock_client import CHAT, chat_body, request_bytes


def test_stream_has_the_exact_expected_bytes(mock: Any) -> None:
    answer = mock.exchange(chat_body(stream=True, max_tokens=2))
    assert answer.headers == {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
    role, first, second, finish, done = answer.body.split(b"\n\n")[:-1]
    chunk = json.loads(role[6:])
    assert chunk["id"].startswith("chatcmpl-")
    start = f'data: {{"id":"{chunk["id"]}","created":{chunk["created"]},"object":"chat.completion.chunk","model":"m",'
    assert role.decode() == start + (
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
    )
    for event in (first, second):
        word = json.loads(event[6:])["choices"][0]["delta"]["content"]
        assert event.decode() == start + (
            f'"choices":[{{"index":0,"delta":{{"content":"{word}"}},"logprobs":null,"finish_reason":null}}]}}'
        )
    assert finish.decode() == start + ('"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}')
    assert done == b"data: [DONE]"


def test_every_event_is_a_separate_chunk(mock: Any) -> None:
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=3)))
        answer = connection.read_reply()
        raw = b"".join(data for _, data in answer.reads)
    assert raw.count(b"\r\n") == 4 + 2 * 6 + 2
    assert raw.endswith(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def test_connection_is_reused_and_reply_ids_differ(mock: Any) -> None:
    with mock.connect() as connection:
        answers = [connection.exchange(chat_body(max_tokens=5, stream=bool(i % 2))) for i in range(6)]
    ids = {(a.chunks[0] if i % 2 else a.json)["id"] for i, a in enumerate(answers)}
    assert len(ids) == 6
    assert all(a.status == 200 and "connection" not in a.headers for a in answers)


def test_request_may_arrive_byte_by_byte(mock: Any) -> None:
    with mock.connect() as connection:
        for byte in request_bytes(chat_body(max_tokens=1)):
            connection.send(bytes([byte]))
        assert connection.read_reply().json["usage"]["completion_tokens"] == 1


def test_request_body_may_be_chunked(mock: Any) -> None:
    body = json.dumps(chat_body(max_tokens=4)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: mock\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [body[i : i + 7] for i in range(0, len(body), 7)]
    with mock.connect() as connection:
        connection.send(head + b"".join(b"%x;x=y\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nTrailer: t\r\n\r\n")
        assert connection.read_reply().json["usage"]["completion_tokens"] == 4
        assert connection.exchange(chat_body(max_tokens=2)).status == 200


def test_expect_100_continue_is_answered(mock: Any) -> None:
    whole = request_bytes(chat_body(max_tokens=1), headers=("Expect: 100-continue",))
    head, _, body = whole.partition(b"\r\n\r\n")
    with mock.connect() as connection:
        connection.send(head + b"\r\n\r\n")
        assert connection.read_reply().status == 100
        connection.send(body)
        assert connection.read_reply().status == 200
        connection.send(whole)  # the body came at once, so no status 100 is sent
        assert connection.read_reply().status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_connection_close_header_is_honoured(mock: Any, stream: bool) -> None:
    with mock.connect() as connection:
        answer = connection.exchange(chat_body(max_tokens=3, stream=stream), headers=("Connection: close",))
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert connection.sock.recv(1) == b""


def test_close_option_closes_the_connection_after_the_reply(mock: Any) -> None:
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(max_tokens=3), mock="close") + request_bytes(chat_body()))
        assert connection.read_reply().headers["connection"] == "close"
        assert connection.sock.recv(1) == b""


@pytest.mark.parametrize("framing", ["chunked", "length", "eof"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pace", ["", ";itl=1", ";comments=2"])
def test_framing_decides_how_a_body_ends(mock: Any, framing: str, stream: bool, pace: str) -> None:
    answer = mock.exchange(chat_body(max_tokens=5, stream=stream), mock=f"framing={framing}{pace}")
    assert answer.end == framing
    if stream:
        assert answer.events[-1] == "[DONE]"
        assert len(answer.text.split()) == 5
    else:
        assert answer.json["usage"]["completion_tokens"] == 5


@pytest.mark.slow
def test_request_body_of_a_hundred_megabytes_is_read(start: Any) -> None:
    server = start()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoA" + "A" * (100 << 20)}}
    parts = [{"type": "text", "text": "What is it?"}, image]
    body = json.dumps(chat_body(messages=[{"role": "user", "content": parts}], max_tokens=3)).encode()
    answer = server.exchange(body)
    assert answer.json["usage"] == {"prompt_tokens": 4 + 256, "completion_tokens": 3, "total_tokens": 263}
    (entry,) = server.logged_requests()
    assert entry["body_bytes"] == len(body)
    assert entry["body_sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.slow
def test_slow_client_receives_the_whole_reply(mock: Any) -> None:
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=60_000), mock="separate"))
        time.sleep(0.3)
        answer = connection.read_reply()
    assert len(answer.text.split()) == 60_000
    assert answer.events[-1] == "[DONE]"


def test_health_models_and_stats_are_served(mock: Any) -> None:
    with mock.connect() as connection:
        assert connection.exchange(path="/health", method="GET").json == {"status": "ok"}
        assert (
            connection.exchange(path="/some/prefix/v1/models/?x=1", method="GET").json["data"][0]["id"] == "mock-model"
        )
        connection.send(request_bytes(path="/v1/models", method="HEAD"))
        head = connection.read_reply(bodiless=True)
        assert head.status == 200
        assert int(head.headers["content-length"]) > 50
        connection.send(request_bytes(path=CHAT, method="HEAD"))
        assert connection.read_reply(bodiless=True).status == 405
        stats = connection.exchange(path="/mock/stats", method="GET").json
    assert stats["requests"] > 0
    assert stats["active"] == 0
    assert stats["connections"]["open"] >= 1


# invalid requests


@pytest.mark.parametrize(
    ("path", "body", "param", "fragment"),
    [
        (CHAT, b"{", None, "not JSON"),
        (CHAT, b"", None, "not JSON"),
        (CHAT, b'{"model":"\xff"}', None, "not JSON"),
        (CHAT, b"[]", None, "object"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "model", "model is required"),
        (CHAT, {"model": "m"}, "messages", "messages is required"),
        (CHAT, {"model": "m", "messages": []}, "messages", "messages is required"),
        (CHAT, {"model": "m", "messages": "x"}, "messages", "array"),
        (CHAT, chat_body(max_tokens="5"), "max_tokens", "int"),
        (CHAT, chat_body(max_tokens=0), "max_tokens", "from 1 to"),
        (CHAT, chat_body(max_completion_tokens=-3), "max_completion_tokens", "from 1 to"),
        (CHAT, chat_body(n=0), "n", "from 1 to"),
        (CHAT, chat_body(stream="yes"), "stream", "bool"),
        ("/v1/completions", {"model": "m"}, "prompt", "prompt is required"),
        ("/v1/completions", {"prompt": "x"}, "model", "model is required"),
        ("/v1/embeddings", {"model": "m"}, "input", "input is required"),
        ("/v1/embeddings", {"model": "m", "input": "x", "dimensions": 0}, "dimensions", "from 1 to"),
        ("/v1/embeddings", {"model": "m", "input": "x", "encoding_format": "int8"}, "encoding_format", "int8"),
    ],
)
def test_invalid_body_is_rejected_with_the_field_and_the_reason(
    mock: Any, path: str, body: Any, param: Any, fragment: str
) -> None:
    with mock.connect() as connection:
        answer = connection.exchange(body, path=path)
        assert answer.status == 400
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert fragment in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert connection.exchange(chat_body(max_tokens=1)).status == 200


def test_invalid_x_mock_header_is_rejected_with_the_reason(mock: Any) -> None:
    for _ in range(2):
        answer = mock.exchange(chat_body(), mock="tfft=3")
        assert answer.status == 400
        assert "tfft" in answer.json["error"]["message"]


def test_unknown_path_and_wrong_method_are_rejected(mock: Any) -> None:
    with mock.connect() as connection:
        missing = connection.exchange(chat_body(), path="/v1/nothing")
        assert missing.status == 404
        assert "/v1/nothing" in missing.json["error"]["message"]
        answer = connection.exchange(path=CHAT, method="GET")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        answer = connection.exchange(path="/v1/models", method="DELETE")
        assert (answer.status, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        request_bytes(chat_body()).replace(b"HTTP/1.1", b"HTTP/1.0"),
        request_bytes(
            chat_body(), headers=("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
        ),
    ],
    ids=["TLS", "HTTP/1.0", "upgrade to HTTP/2"],
)
def test_other_protocols_are_rejected_and_the_connection_is_closed(mock: Any, data: bytes) -> None:
    with mock.connect() as connection:
        connection.send(data)
        answer = connection.read_reply()
        assert answer.status == 400
        assert answer.headers["connection"] == "close"
        assert "HTTP/1.1" in answer.json["error"]["message"]
        assert connection.sock.recv(1) == b""


@pytest.mark.parametrize("pace", ["", "ttft=50"])
def test_pipelined_request_is_dropped_and_the_connection_closed(mock: Any, pace: str) -> None:
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(model="m1"), mock=pace) + request_bytes(chat_body(model="m2")))
        assert connection.read_reply().json["model"] == "m1"
        assert connection.sock.recv(1) == b""


def test_request_during_a_reply_is_dropped_and_the_connection_closed(mock: Any) -> None:
    with mock.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=3), mock="itl=50"))
        connection.sock.recv(1, socket.MSG_PEEK)
        connection.sock.sendall(request_bytes(chat_body()))
        assert connection.read_reply().events[-1] == "[DONE]"
        assert connection.sock.recv(1) == b""

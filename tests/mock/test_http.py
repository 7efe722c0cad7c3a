"""HTTP as bytes: what goes over a real socket, to a real process."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest

from support.mock_client import CHAT, chat, request


def test_a_stream_is_what_it_should_be_to_the_byte(mock: Any) -> None:
    answer = mock.ask(chat(stream=True, max_tokens=2))
    assert answer.headers == {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
    role, first, second, finish, done = answer.body.split(b"\n\n")[:-1]
    mark = json.loads(role[6:])
    assert mark["id"].startswith("chatcmpl-")
    start = f'data: {{"id":"{mark["id"]}","created":{mark["created"]},"object":"chat.completion.chunk","model":"m",'
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


def test_every_event_is_a_chunk_of_its_own(mock: Any) -> None:
    with mock.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=3)))
        answer = wire.answer()
        raw = b"".join(data for _, data in answer.reads)
    assert raw.count(b"\r\n") == 4 + 2 * 6 + 2
    assert raw.endswith(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_connection_serves_many_requests_and_ids_differ(mock: Any) -> None:
    with mock.wire() as wire:
        answers = [wire.ask(chat(max_tokens=5, stream=bool(i % 2))) for i in range(6)]
    ids = {(a.chunks[0] if i % 2 else a.json)["id"] for i, a in enumerate(answers)}
    assert len(ids) == 6
    assert all(a.status == 200 and "connection" not in a.headers for a in answers)


def test_pipelined_requests_are_answered_in_order(mock: Any) -> None:
    kinds = ["ttft=30", "", "ttft=10;itl=1", "error=503", ""]
    with mock.wire() as wire:
        wire.send(b"".join(request(chat(model=f"m{i}", max_tokens=i + 1), mock=kind) for i, kind in enumerate(kinds)))
        answers = [wire.answer() for _ in kinds]
    assert [a.status for a in answers] == [200, 200, 200, 503, 200]
    assert [a.json["model"] for a in answers if a.status == 200] == ["m0", "m1", "m2", "m4"]


def test_a_thousand_pipelined_requests_do_not_recurse(mock: Any) -> None:
    with mock.wire() as wire:
        wire.send(request(chat(max_tokens=1), mock="separate") * 1000)
        assert all(wire.answer().status == 200 for _ in range(1000))


def test_a_request_may_arrive_byte_by_byte(mock: Any) -> None:
    with mock.wire() as wire:
        for byte in request(chat(max_tokens=1)):
            wire.send(bytes([byte]))
        assert wire.answer().json["usage"]["completion_tokens"] == 1


def test_a_request_may_be_chunked(mock: Any) -> None:
    body = json.dumps(chat(max_tokens=4)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: mock\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = [body[i : i + 7] for i in range(0, len(body), 7)]
    with mock.wire() as wire:
        wire.send(head + b"".join(b"%x;x=y\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nTrailer: t\r\n\r\n")
        assert wire.answer().json["usage"]["completion_tokens"] == 4
        assert wire.ask(chat(max_tokens=2)).status == 200


def test_a_client_that_expects_leave_gets_it(mock: Any) -> None:
    whole = request(chat(max_tokens=1), headers=("Expect: 100-continue",))
    head, _, body = whole.partition(b"\r\n\r\n")
    with mock.wire() as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.answer().status == 100
        wire.send(body)
        assert wire.answer().status == 200
        wire.send(whole)  # it did not wait, so it needs no leave
        assert wire.answer().status == 200


def test_leave_waits_for_the_reply_before_it(mock: Any) -> None:
    head, _, body = request(chat(max_tokens=1), headers=("Expect: 100-continue",)).partition(b"\r\n\r\n")
    with mock.wire() as wire:
        wire.send(request(chat(max_tokens=1), mock="ttft=50") + head + b"\r\n\r\n")
        assert [wire.answer().status for _ in range(2)] == [200, 100]
        wire.send(body)
        assert wire.answer().status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_connection_close_is_honoured(mock: Any, stream: bool) -> None:
    with mock.wire() as wire:
        answer = wire.ask(chat(max_tokens=3, stream=stream), headers=("Connection: close",))
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert wire.sock.recv(1) == b""


def test_the_server_may_close_too(mock: Any) -> None:
    with mock.wire() as wire:
        wire.send(request(chat(max_tokens=3), mock="close") + request(chat()))
        assert wire.answer().headers["connection"] == "close"
        assert wire.sock.recv(1) == b""


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_no_chunks(mock: Any, stream: bool) -> None:
    with mock.wire() as wire:
        wire.send(request(chat(max_tokens=3, stream=stream)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = wire.answer()
    assert answer.headers["connection"] == "close"
    assert "transfer-encoding" not in answer.headers
    assert answer.end == ("eof" if stream else "length")
    with mock.wire() as wire:
        wire.send(request(chat(), headers=("Connection: keep-alive",)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert wire.answer().headers["connection"] == "keep-alive"


@pytest.mark.parametrize("framing", ["chunked", "length", "eof"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pace", ["", ";itl=1", ";comments=2"])
def test_a_body_can_end_in_three_ways(mock: Any, framing: str, stream: bool, pace: str) -> None:
    answer = mock.ask(chat(max_tokens=5, stream=stream), mock=f"framing={framing}{pace}")
    assert answer.end == framing
    if stream:
        assert answer.events[-1] == "[DONE]"
        assert len(answer.text.split()) == 5
    else:
        assert answer.json["usage"]["completion_tokens"] == 5


def test_a_body_of_a_hundred_megabytes(start: Any) -> None:
    server = start()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoA" + "A" * (100 << 20)}}
    parts = [{"type": "text", "text": "What is it?"}, image]
    body = json.dumps(chat(messages=[{"role": "user", "content": parts}], max_tokens=3)).encode()
    answer = server.ask(body)
    assert answer.json["usage"] == {"prompt_tokens": 4 + 256, "completion_tokens": 3, "total_tokens": 263}
    (truth,) = server.truth()
    assert truth["body_bytes"] == len(body)
    assert truth["body_sha256"] == hashlib.sha256(body).hexdigest()


def test_a_client_that_reads_slowly_gets_all(mock: Any) -> None:
    with mock.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=60_000), mock="separate"))
        time.sleep(0.3)
        answer = wire.answer()
    assert len(answer.text.split()) == 60_000
    assert answer.events[-1] == "[DONE]"


def test_plain_pages(mock: Any) -> None:
    with mock.wire() as wire:
        assert wire.ask(path="/health", method="GET").json == {"status": "ok"}
        assert wire.ask(path="/some/prefix/v1/models/?x=1", method="GET").json["data"][0]["id"] == "mock-model"
        wire.send(request(path="/v1/models", method="HEAD"))
        head = wire.answer(bodiless=True)
        assert head.status == 200
        assert int(head.headers["content-length"]) > 50
        wire.send(request(path=CHAT, method="HEAD"))
        assert wire.answer(bodiless=True).status == 405
        stats = wire.ask(path="/mock/stats", method="GET").json
    assert stats["requests"] > 0
    assert stats["active"] == 0
    assert stats["connections"]["open"] >= 1


# errors of the caller


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (CHAT, b"{", None, "not JSON"),
        (CHAT, b"", None, "not JSON"),
        (CHAT, b'{"model":"\xff"}', None, "not JSON"),
        (CHAT, b"[]", None, "object"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "model", "model is required"),
        (CHAT, {"model": "m"}, "messages", "messages is required"),
        (CHAT, {"model": "m", "messages": []}, "messages", "messages is required"),
        (CHAT, {"model": "m", "messages": "x"}, "messages", "array"),
        (CHAT, chat(max_tokens="5"), "max_tokens", "int"),
        (CHAT, chat(max_tokens=0), "max_tokens", "from 1 to"),
        (CHAT, chat(max_completion_tokens=-3), "max_completion_tokens", "from 1 to"),
        (CHAT, chat(n=0), "n", "from 1 to"),
        (CHAT, chat(stream="yes"), "stream", "bool"),
        ("/v1/completions", {"model": "m"}, "prompt", "prompt is required"),
        ("/v1/completions", {"prompt": "x"}, "model", "model is required"),
        ("/v1/embeddings", {"model": "m"}, "input", "input is required"),
        ("/v1/embeddings", {"model": "m", "input": "x", "dimensions": 0}, "dimensions", "from 1 to"),
        ("/v1/embeddings", {"model": "m", "input": "x", "encoding_format": "int8"}, "encoding_format", "int8"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(mock: Any, path: str, body: Any, param: Any, words: str) -> None:
    with mock.wire() as wire:
        answer = wire.ask(body, path=path)
        assert answer.status == 400
        error = answer.json["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert words in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert wire.ask(chat(max_tokens=1)).status == 200


def test_a_bad_header_is_told_what_is_wrong(mock: Any) -> None:
    for _ in range(2):
        answer = mock.ask(chat(), mock="tfft=3")
        assert answer.status == 400
        assert "tfft" in answer.json["error"]["message"]


def test_paths_and_methods(mock: Any) -> None:
    with mock.wire() as wire:
        missing = wire.ask(chat(), path="/v1/nothing")
        assert missing.status == 404
        assert "/v1/nothing" in missing.json["error"]["message"]
        wrong = wire.ask(path=CHAT, method="GET")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        wrong = wire.ask(path="/v1/models", method="DELETE")
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET")


def test_what_is_not_http_gets_an_answer_and_the_end(mock: Any) -> None:
    with mock.wire() as wire:
        wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        answer = wire.answer()
        assert answer.status == 400
        assert "HTTP/1.1" in answer.json["error"]["message"]
        assert wire.sock.recv(1) == b""


def test_an_offer_of_http_2_is_ignored(mock: Any) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    one = request(chat(max_tokens=1), headers=offer)
    with mock.wire() as wire:
        wire.send(one + one[:-5])
        assert wire.answer().json["usage"]["completion_tokens"] == 1
        wire.send(one[-5:] + request(chat(max_tokens=2)))
        assert [wire.answer().json["usage"]["completion_tokens"] for _ in range(2)] == [1, 2]
        wire.send(request(path="/health", method="GET", headers=offer) * 2)
        assert [wire.answer().status for _ in range(2)] == [200, 200]

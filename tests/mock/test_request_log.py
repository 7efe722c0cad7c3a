"""The log against what a client saw."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from typing import Any

from support.mock_client import chat, request
from support.programs import wait_for


def test_a_line_tells_all_of_a_request(start: Any) -> None:
    server = start()
    body = json.dumps(chat(stream=True, max_tokens=8)).encode()
    began = time.time_ns()
    with server.wire() as wire:
        ids = ("X-Request-ID: r-1", "X-Correlation-ID: c-1")
        answer = wire.ask(body, mock="ttft=20;itl=2;reasoning=3", headers=ids)
        ended = time.time_ns()
        wire.ask(path="/v1/models", method="GET")
        wire.ask(b"{")
    stream, models, bad = server.truth()
    assert stream["k"] == 0
    assert (stream["request_id"], stream["correlation_id"]) == ("r-1", "c-1")
    assert (stream["path"], stream["method"], stream["stream"]) == ("/v1/chat/completions", "POST", True)
    assert (stream["status"], stream["fault"], stream["end"]) == (200, None, "complete")
    assert (stream["tokens"], stream["reasoning_tokens"]) == (8, 3)
    assert (stream["prompt_tokens"], stream["completion_tokens"]) == (4, 8)
    assert (stream["body_bytes"], stream["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert stream["kernel_stamp"] is (sys.platform == "linux")
    assert stream["write_tokens"] == [1] * 8
    assert stream["first_write_ns"] == stream["write_ns"][0]
    times = [began, stream["arrived_ns"], *stream["write_ns"], stream["ended_ns"]]
    assert times == sorted(times)
    assert stream["write_ns"][-1] < ended
    due = [stream["arrived_ns"] + 20_000_000 + i * 2_000_000 for i in range(8)]
    assert all(written > wanted - 500_000 for wanted, written in zip(due, stream["write_ns"], strict=True))
    assert len(answer.text.split()) == 5
    assert (models["k"], models["method"], models["tokens"]) == (None, "GET", 0)
    assert (bad["k"], bad["status"]) == (1, 400)
    assert {line["connection"] for line in (stream, models, bad)} == {1}


def test_a_request_counts_from_its_last_byte(start: Any) -> None:
    server = start(ttft=30.0)
    data = request(chat(max_tokens=1))
    with server.wire() as wire:
        wire.send(data[:-10])
        time.sleep(0.15)
        before = time.time_ns()
        wire.send(data[-10:])
        wire.answer()
    (line,) = server.truth()
    assert line["arrived_ns"] >= before
    assert line["first_write_ns"] - line["arrived_ns"] >= 29_000_000


def test_a_client_that_leaves_is_told_apart(start: Any) -> None:
    server = start()
    with server.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=1000), mock="itl=5"))
        wire.sock.recv(100)
    time.sleep(0.1)
    (line,) = server.truth()
    assert line["end"] == "aborted"
    assert 0 < line["tokens"] < 1000
    assert line["completion_tokens"] == 1000


def test_lines_appear_while_the_server_runs(start: Any) -> None:
    server = start()
    server.ask(chat())
    wait_for(lambda: server.log.read_text().endswith("}\n"), what="the line")


def test_what_is_under_way_at_the_end_is_logged(start: Any) -> None:
    server = start()
    with server.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=1000), mock="itl=20"))
        wire.sock.recv(100)
        (line,) = server.truth()
    assert line["end"] == "aborted"


def test_replies_to_a_client_that_does_not_read_are_marked(start: Any) -> None:
    server = start()
    with server.wire() as wire:
        wire.send(request(chat(stream=True, max_tokens=100_000), mock=""))
        arrived, since = 0, time.monotonic()
        while not arrived or time.monotonic() - since < 1.5:  # until nothing more fits into the buffers of both sides
            if (now := len(wire.sock.recv(1 << 24, socket.MSG_PEEK))) > arrived:
                arrived, since = now, time.monotonic()
            time.sleep(0.05)
        assert wire.answer().events[-1] == "[DONE]"
    (line,) = server.truth()
    assert line["blocked"] > 0
    assert line["end"] == "complete"

"""The request log, compared with what a client saw."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from typing import Any

import pytest

from support.mock_client import chat_body, request_bytes
from support.programs import wait_for


def test_log_entry_describes_the_request(start: Any) -> None:
    server = start()
    body = json.dumps(chat_body(stream=True, max_tokens=8)).encode()
    began = time.time_ns()
    with server.connect() as connection:
        ids = ("X-Request-ID: r-1", "X-Correlation-ID: c-1")
        answer = connection.exchange(body, mock="ttft=20;itl=2;reasoning=3", headers=ids)
        ended = time.time_ns()
        connection.exchange(path="/v1/models", method="GET")
        connection.exchange(b"{")
    stream, models, bad = server.logged_requests()
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
    assert all(written > due_ns - 500_000 for due_ns, written in zip(due, stream["write_ns"], strict=True))
    assert len(answer.text.split()) == 5
    assert (models["k"], models["method"], models["tokens"]) == (None, "GET", 0)
    assert (bad["k"], bad["status"]) == (1, 400)
    assert {line["connection"] for line in (stream, models, bad)} == {1}


def test_arrival_is_the_time_of_the_last_byte(start: Any) -> None:
    server = start(ttft=30.0)
    data = request_bytes(chat_body(max_tokens=1))
    with server.connect() as connection:
        connection.send(data[:-10])
        time.sleep(0.15)
        before = time.time_ns()
        connection.send(data[-10:])
        connection.read_reply()
    (line,) = server.logged_requests()
    assert line["arrived_ns"] >= before
    assert line["first_write_ns"] - line["arrived_ns"] >= 29_000_000


def test_request_of_a_client_that_disconnects_is_logged_as_aborted(start: Any) -> None:
    server = start()
    with server.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=1000), mock="itl=5"))
        connection.sock.recv(100)
    time.sleep(0.1)
    (line,) = server.logged_requests()
    assert line["end"] == "aborted"
    assert 0 < line["tokens"] < 1000
    assert line["completion_tokens"] == 1000


def test_entries_are_written_while_the_server_runs(start: Any) -> None:
    server = start()
    server.exchange(chat_body())
    wait_for(lambda: server.log.read_text().endswith("}\n"), what="the line")


def test_requests_in_progress_are_logged_when_the_server_stops(start: Any) -> None:
    server = start()
    with server.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=1000), mock="itl=20"))
        connection.sock.recv(100)
        (line,) = server.logged_requests()
    assert line["end"] == "aborted"


@pytest.mark.slow
def test_blocked_writes_are_counted_if_the_client_does_not_read(start: Any) -> None:
    server = start()
    with server.connect() as connection:
        connection.send(request_bytes(chat_body(stream=True, max_tokens=100_000), mock=""))
        arrived, since = 0, time.monotonic()
        while not arrived or time.monotonic() - since < 1.5:  # until the buffers of both sides are full
            if (now := len(connection.sock.recv(1 << 24, socket.MSG_PEEK))) > arrived:
                arrived, since = now, time.monotonic()
            time.sleep(0.05)
        assert connection.read_reply().events[-1] == "[DONE]"
    (line,) = server.logged_requests()
    assert line["blocked"] > 0
    assert line["end"] == "complete"

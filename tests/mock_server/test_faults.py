"""Each fault, as a client sees it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock.mock_server.behaviour import FAULTS
from penstock.mock_server.write_steps import fault_applies
from support.mock_client import chat_body, request_bytes
from support.programs import wait_for

STREAM = chat_body(stream=True, max_tokens=6)


@pytest.mark.parametrize("stream", [False, True])
def test_error_answers_with_its_status(mock: Any, stream: bool) -> None:
    with mock.connect() as connection:
        answer = connection.exchange(chat_body(stream=stream), mock="error=429;retry_after=2")
        assert answer.status == 429
        assert answer.headers["retry-after"] == "2"
        assert answer.json["error"]["type"] == "rate_limit_error"
        assert connection.exchange(chat_body(stream=stream), mock="error=500").json["error"]["type"] == "server_error"
        assert connection.exchange(chat_body()).status == 200


@pytest.mark.parametrize("after", [0, 2, 99])
def test_stream_error_sends_an_error_object_after_its_tokens(mock: Any, after: int) -> None:
    answer = mock.exchange(STREAM, mock=f"stream_error={after}")
    assert answer.status == 200
    assert "error" in answer.chunks[-1]
    assert not any("error" in chunk for chunk in answer.chunks[:-1])
    assert len(answer.text.split()) == min(after, 6)
    assert answer.events[-1] == "[DONE]"
    assert mock.exchange(chat_body(max_tokens=3), mock="stream_error=1").json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("after", [1, 3, 99])
@pytest.mark.parametrize("pace", ["", ";itl=3"])
def test_cut_closes_the_connection_after_its_tokens(mock: Any, after: int, pace: str) -> None:
    answer = mock.exchange(STREAM, mock=f"cut={after}{pace}")
    assert answer.end == "eof"
    assert len(answer.text.split()) == min(after, 6)
    assert "[DONE]" not in answer.events
    assert answer.chunks[-1]["choices"][0]["finish_reason"] is None


def test_cut_applies_to_json_bodies_and_before_the_head(mock: Any) -> None:
    answer = mock.exchange(chat_body(max_tokens=10), mock="cut=5")
    assert answer.status == 200
    assert answer.end == "eof"
    assert 0.4 < len(answer.body) / int(answer.headers["content-length"]) < 0.6
    before_head = mock.exchange(STREAM, mock="cut=0;ttft=5")
    assert (before_head.status, before_head.body, before_head.end) == (0, b"", "eof")


def test_reset_ends_the_connection_with_a_tcp_reset(mock: Any) -> None:
    answer = mock.exchange(STREAM, mock="cut=2;reset;itl=5")
    assert answer.end == "reset"
    assert len(answer.text.split()) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_stall_delays_the_rest_of_the_reply(start: Any, stream: bool) -> None:
    server = start()
    answer = server.exchange(chat_body(stream=stream, max_tokens=6), mock="stall=0.3;stall_after=2")
    assert answer.reads[-1][0] > 0.25
    if stream:
        assert answer.events[-1] == "[DONE]"
    else:
        assert answer.json["usage"]["completion_tokens"] == 6
    (entry,) = server.logged_requests()
    assert entry["write_tokens"] == [2, 4]
    before, after = entry["write_ns"]
    assert after - entry["arrived_ns"] > 290_000_000
    assert before < after


@pytest.mark.slow
def test_endless_stall_ends_when_the_client_disconnects(mock: Any) -> None:
    before = mock.stats()
    with mock.connect() as connection:
        connection.send(request_bytes(STREAM, mock="stall=inf;stall_after=3"))
        answer = connection.read_reply(timeout=2)
        assert answer.end == "silence"
        assert len(answer.text.split()) == 3
        assert mock.stats()["active"] == before["active"] + 1
    wait_for(lambda: mock.stats()["active"] == before["active"], what="the end of the request")
    after = mock.stats()
    assert after["ends"]["aborted"] == before["ends"].get("aborted", 0) + 1
    assert after["faults"]["stall"] == before["faults"].get("stall", 0) + 1


def test_malformed_sends_invalid_json(mock: Any) -> None:
    events = mock.exchange(STREAM, mock="malformed=2").events
    malformed = []
    for i, event in enumerate(events[:-1]):
        try:
            json.loads(event)
        except json.JSONDecodeError:
            malformed.append(i)
    assert malformed == [3]
    assert len(events) == 10
    body = mock.exchange(chat_body(), mock="malformed=2").body
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)


@pytest.mark.slow
def test_slow_head_is_sent_in_several_writes(mock: Any) -> None:
    with mock.connect() as connection:
        answer = connection.exchange(STREAM, mock="slow_head=2")
        assert len(answer.reads) > 1
        assert answer.reads[-1][0] > 1.9
        assert b"\r\n\r\n" not in answer.reads[0][1]
        assert len(answer.text.split()) == 6
        assert connection.exchange(chat_body(), mock="error=503;slow_head=0.05").status == 503


@pytest.mark.parametrize("stream", [False, True])
def test_empty_html_and_content_type_change_the_response(mock: Any, stream: bool) -> None:
    with mock.connect() as connection:
        empty = connection.exchange(chat_body(stream=stream), mock="empty")
        assert (empty.status, empty.body) == (200, b"")
        html = connection.exchange(chat_body(stream=stream), mock="html")
        assert html.status == 200
        assert html.headers["content-type"].startswith("text/html")
        assert html.body.startswith(b"<!DOCTYPE html>")
        odd = connection.exchange(chat_body(stream=stream, max_tokens=2), mock="content_type=text/plain")
        assert odd.headers["content-type"] == "text/plain"
        assert b'"choices"' in odd.body


@pytest.mark.slow
def test_only_idle_connections_are_closed(start: Any) -> None:
    server = start(idle_close=1500.0)
    with server.connect() as idle, server.connect() as busy:
        began = time.monotonic()
        assert busy.exchange(STREAM, mock="itl=400").events[-1] == "[DONE]"
        assert idle.sock.recv(1) == b""
        assert busy.exchange(STREAM).events[-1] == "[DONE]"
        assert busy.sock.recv(1) == b""
        assert time.monotonic() - began >= 3.4  # five gaps of 400 ms, then idle_close


def test_seed_decides_which_requests_fail(start: Any) -> None:
    fault = FAULTS.index("error")
    server = start(error=503, error_rate=0.4, seed=11)
    with server.connect() as connection:
        connection.exchange(path="/v1/models", method="GET")  # not a model request, so it has no number
        statuses = [connection.exchange(chat_body(max_tokens=1)).status for _ in range(60)]
    assert statuses == [503 if fault_applies(11, k, fault, 0.4) else 200 for k in range(60)]
    assert 10 < statuses.count(503) < 40
    faults = [entry["fault"] for entry in server.logged_requests() if entry["k"] is not None]
    assert [name == "error" for name in faults] == [status == 503 for status in statuses]


def test_several_faults_apply_to_one_request(start: Any) -> None:
    server = start()
    answer = server.exchange(STREAM, mock="stall=0.1;cut=4;content_type=text/plain")
    assert answer.headers["content-type"] == "text/plain"
    assert answer.end == "eof"
    assert len(answer.text.split()) == 4
    assert answer.reads[-1][0] > 0.08
    (entry,) = server.logged_requests()
    assert entry["fault"] == "content_type+cut+stall"
    assert (entry["end"], entry["tokens"], entry["completion_tokens"]) == ("cut", 4, 6)

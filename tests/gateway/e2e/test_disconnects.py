"""Callers that disconnect: each has one ledger entry, its upstream request is cancelled, nothing leaks."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, Stream, resources
from support.programs import wait_for
from support.scripted_upstream import ReceivedRequest, ScriptedConnection, Upstream, normal_reply, response_events

EVENTS = response_events(["One", " two", " three", " four."])


def head(body: bytes, length: int | None = None) -> bytes:
    return b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b" % (
        CALLER.encode(),
        len(body) if length is None else length,
        body,
    )


def stream_body() -> bytes:
    return json.dumps({"model": ALIAS, "input": "Hi.", "stream": True}).encode()


@pytest.mark.parametrize("count", range(1, len(EVENTS) + 1))
def test_disconnect_after_each_event_cancels_the_upstream_and_is_recorded(
    gateway: GatewayProcess, upstream: Upstream, count: int
) -> None:
    cancelled: list[bool] = []

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for piece in EVENTS[:count]:
            connection.chunk(piece)
        disconnected.wait(60)
        cancelled.append(connection.closed_within())

    disconnected = threading.Event()
    gateway.reload(resources(upstream.url, model={"on_disconnect": "cancel"}))
    upstream.use_script(script)
    stream = gateway.stream()
    for _ in range(count):
        stream.next_event()
    stream.close()
    disconnected.set()
    entry = gateway.ledger_entry(stream)
    if count == len(EVENTS):  # the caller had the last event
        assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")
        assert entry["output_tokens"] == 23
    else:
        assert (entry["status"], entry["error"], entry["finish"]) == (499, "client_disconnected", "disconnected")
        assert entry["usage_source"] == "reserved"
        assert entry["input_tokens"] >= 1
        assert entry["output_tokens"] == 1024  # limits.default_output_tokens
    assert entry["events"] == count
    wait_for(lambda: cancelled == [True])
    wait_for(lambda: gateway.in_flight() == 0)


def test_disconnect_before_the_reply_head_is_recorded_as_499(gateway: GatewayProcess, upstream: Upstream) -> None:
    closed: list[bool] = []
    upstream.use_script(lambda _request, connection: closed.append(connection.closed_within()))
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests)
    wait_for(lambda: closed == [True])
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    assert rows[0]["attempts"][0]["provider_key"] == "up"


def test_disconnect_during_backoff_ends_the_request(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 5}))
    upstream.reply_with({}, 500, retry_after="5")
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests)
        time.sleep(0.2)
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [row["status"] for row in rows] == [499]
    assert len(upstream.requests) == 1


def test_disconnect_within_the_body_is_499_without_upstream_request(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    before = len(gateway.ledger_rows())
    connections = upstream.connections
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(b'{"model": "gpt', 1000))
        wait_for(lambda: gateway.in_flight() == 1)
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [row["status"] for row in rows] == [499]
    assert (upstream.requests, upstream.connections) == ([], connections)


def test_disconnect_within_a_chunked_body_is_499(gateway: GatewayProcess, upstream: Upstream) -> None:
    before = len(gateway.ledger_rows())
    start = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % CALLER.encode()
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(start + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n')
        wait_for(lambda: gateway.in_flight() == 1)
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:  # a caller that stays connected gets a 400
        caller.sendall(start + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n0\r\n\r\n')
        assert caller.recv(65536).startswith(b"HTTP/1.1 400 ")
    wait_for(lambda: len(gateway.ledger_rows()) == before + 2)


@pytest.mark.parametrize(
    "rest",
    [
        b'Content-Length: 100\r\n\r\n{"model":"m"',
        b'Content-Length: 100000\r\n\r\n{"model":"m"',
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n',
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"m',
    ],
)
def test_half_close_within_the_body_is_a_disconnect(gateway: GatewayProcess, rest: bytes) -> None:
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        start = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % CALLER.encode()
        caller.sendall(start + rest)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(65536) == b""
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]


def test_half_close_after_a_request_is_a_disconnect(gateway: GatewayProcess, upstream: Upstream) -> None:
    closed: list[bool] = []
    upstream.use_script(lambda _request, connection: closed.append(connection.closed_within()))
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(65536) == b""
    wait_for(lambda: closed == [True])
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]


@pytest.mark.parametrize("size", [10, 500_000])
def test_disconnect_is_noticed_behind_a_pipelined_request(
    gateway: GatewayProcess, upstream: Upstream, size: int
) -> None:
    """The gateway does not read a large body to its end before it handles the request."""
    closed: list[bool] = []
    upstream.use_script(lambda _request, connection: closed.append(connection.closed_within()))
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests)
        caller.sendall(head(b"x" * size))
    wait_for(lambda: closed == [True])
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]


def test_request_not_fully_sent_upstream_is_not_charged(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The caller disconnects while the gateway sends its request to an upstream that does not read."""
    limited = {"rate_limit": {"tpm": 20_000_000}}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway.reload(resources(f"http://127.0.0.1:{listener.getsockname()[1]}", caller=limited))
        before = len(gateway.ledger_rows())
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(head(json.dumps({"model": ALIAS, "input": "word " * 4_000_000}).encode()))
            accepted, _ = listener.accept()
            time.sleep(0.3)
        rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
        accepted.close()
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    assert (rows[0]["usage_source"], rows[0]["input_tokens"], rows[0]["output_tokens"]) == ("none", 0, 0)
    gateway.reload(resources(upstream.url, caller=limited))
    reply = gateway.respond()
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) > 19_990_000
    gateway.ledger_entry(reply)


def test_disconnect_frees_the_concurrency_slot(gateway: GatewayProcess, upstream: Upstream) -> None:
    cancels = {"on_disconnect": "cancel"}
    gateway.reload(resources(upstream.url, model=cancels, caller={"rate_limit": {"concurrency": 1}}))
    done = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(EVENTS[0])
        done.set()
        connection.closed_within()

    for _ in range(3):
        upstream.use_script(script)
        done.clear()
        stream = gateway.stream()
        stream.next_event()
        assert done.wait(60)
        assert gateway.respond().status == 429
        stream.close()
        upstream.use_script(normal_reply)
        reply = wait_for(lambda: (reply := gateway.respond()).status == 200 and reply, what="a free slot")
    gateway.ledger_entry(reply)


def test_disconnect_at_any_byte_writes_one_entry_and_leaks_no_connection(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    """The caller closes at many offsets of the reply, including its head."""
    upstream.stream_with(EVENTS, pause_s=0.002)
    before = len(gateway.ledger_rows())
    total = 0
    for limit in range(1, 4000, 160):
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(head(stream_body()))
            seen = b""
            while len(seen) < limit and not seen.endswith(b"0\r\n\r\n"):
                seen += caller.recv(min(240, limit - len(seen)))
        total += 1
    rows = wait_for(lambda: len(rows := gateway.ledger_rows()) >= before + total and rows)
    assert len(rows) == before + total
    assert len({row["request_id"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows[before:]} <= {200, 499}
    wait_for(lambda: gateway.in_flight() == 0)
    wait_for(lambda: gateway.config()["workers"][0]["upstream_connections"] <= 2)


def test_many_disconnects_do_not_affect_other_callers(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with(EVENTS, pause_s=0.02)
    before = len(gateway.ledger_rows())
    statuses: list[int] = []

    def stay() -> None:
        stream = gateway.stream()
        if stream.read_rest() == b"".join(EVENTS):
            statuses.append(stream.status)

    def leave() -> None:
        stream = gateway.stream()
        stream.next_event()
        stream.close()

    threads = [threading.Thread(target=stay if n % 2 else leave) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20
    rows = wait_for(lambda: len(rows := gateway.ledger_rows()) >= before + 40 and rows)
    assert sorted(row["status"] for row in rows[before:]) == [200] * 20 + [499] * 20


def leave(stream: Stream) -> None:
    """Disconnect, and wait until the gateway has noticed it: it closes the connection."""
    connection = stream._connection.sock
    assert connection is not None
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass
    stream.close()


def usage_script(left: threading.Event, events: list[bytes], then: str = "end"):
    """Send the first event, and the others once the caller has left."""

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(events[0])
        assert left.wait(60)
        for piece in events[1:]:
            connection.chunk(piece)
        if then == "end":
            connection.end()
        else:
            connection.closed_within()

    return script


REASONING = {"input_tokens": 9, "output_tokens": 20_000, "output_tokens_details": {"reasoning_tokens": 19_990}}


@pytest.mark.parametrize("then", ["end", "stall"])
@pytest.mark.parametrize("limited", [False, True])
def test_stream_that_its_caller_leaves_is_read_to_its_end(
    gateway: GatewayProcess, upstream: Upstream, then: str, limited: bool
) -> None:
    """The ledger gets the usage at the end, and the slot is held until then."""
    caller = {"display_name": f"left-{then}", "rate_limit": {"concurrency": 1, "tpm": 100_000}} if limited else {}
    gateway.reload(resources(upstream.url, caller=caller))
    left = threading.Event()
    upstream.use_script(usage_script(left, response_events(["One"], usage=REASONING), then))
    stream = gateway.stream()
    stream.next_event()
    leave(stream)
    if limited:
        assert gateway.respond().status == 429
    left.set()
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["finish"]) == (499, "client_disconnected", "disconnected")
    assert (entry["output_tokens"], entry["reasoning_tokens"], entry["usage_source"]) == (20_000, 19_990, "upstream")
    if limited:
        upstream.use_script(normal_reply)
        reply = gateway.respond()
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) < 80_000
        gateway.ledger_entry(reply)


def test_stream_that_its_caller_leaves_before_its_head_is_read_to_its_end(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    left = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        assert left.wait(60)
        connection.stream(response_events(["One"], usage=REASONING))

    upstream.use_script(script)
    before = len(gateway.ledger_rows())
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(stream_body()))
        wait_for(lambda: upstream.requests)
    left.set()
    rows = wait_for(lambda: (rows := gateway.ledger_rows())[before:] and rows[before:])
    assert [(row["status"], row["output_tokens"], row["usage_source"]) for row in rows] == [(499, 20_000, "upstream")]


@pytest.mark.parametrize("model", [{"provider": "deepseek"}, {"on_disconnect": "cancel"}])
def test_stream_of_another_provider_is_cancelled_when_its_caller_leaves(
    gateway: GatewayProcess, upstream: Upstream, model: dict[str, str]
) -> None:
    gateway.reload(resources(upstream.url, model=model))
    closed: list[bool] = []

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')
        closed.append(connection.closed_within())

    upstream.use_script(script)
    stream = gateway.stream("/v1/chat/completions", {"max_tokens": 700})
    stream.next_event()
    stream.close()
    entry = gateway.ledger_entry(stream)
    wait_for(lambda: closed == [True])
    assert (entry["status"], entry["usage_source"], entry["output_tokens"]) == (499, "reserved", 700)


def test_number_of_streams_that_are_read_on_is_limited(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), upstream={"max_abandoned_streams": 1})
    left = threading.Event()
    upstream.use_script(usage_script(left, response_events(["One"], usage=REASONING)))
    streams = [gateway.stream() for _ in range(2)]
    for stream in streams:
        stream.next_event()
    for stream in streams:
        leave(stream)
    second = gateway.ledger_entry(streams[1])
    assert (second["usage_source"], second["output_tokens"]) == ("reserved", 1024)
    left.set()
    assert gateway.ledger_entry(streams[0])["output_tokens"] == 20_000


def test_stream_that_its_caller_leaves_is_cancelled_after_16_mib(gateway: GatewayProcess, upstream: Upstream) -> None:
    left, closed = threading.Event(), threading.Event()
    sent: list[int] = []

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(EVENTS[0])
        assert left.wait(60)
        piece = b": %b\n\n" % (b"x" * (1 << 18))
        with contextlib.suppress(OSError):
            for _ in range(400):
                connection.chunk(piece)
                sent.append(len(piece))
        closed.set()

    upstream.use_script(script)
    stream = gateway.stream()
    stream.next_event()
    leave(stream)
    left.set()
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["finish"], entry["usage_source"]) == (499, "disconnected", "reserved")
    assert closed.wait(60)
    assert 16 << 20 < sum(sent) < 64 << 20

"""Callers that go away: one record each, the upstream cancelled, nothing left behind (X-7)."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, resources
from support.programs import wait_for
from support.scripted_upstream import Received, Upstream, Wire, answer, response_events

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
def test_a_caller_that_leaves_after_so_many_events(gateway: GatewayProcess, upstream: Upstream, count: int) -> None:
    cancelled: list[float] = []

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        for piece in EVENTS[:count]:
            wire.chunk(piece)
        left.wait(10)
        began = time.monotonic()
        if wire.gone(5):
            cancelled.append(time.monotonic() - began)

    left = threading.Event()
    upstream.does(script)
    stream = gateway.stream()
    for _ in range(count):
        stream.event()
    stream.close()
    left.set()
    entry = gateway.entry(stream)
    if count == len(EVENTS):  # the last event was there: nothing is missing
        assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")
        assert entry["output_tokens"] == 23
    else:
        assert (entry["status"], entry["error"], entry["finish"]) == (499, "client_disconnected", "disconnected")
        assert entry["usage_source"] == "estimated"
        assert entry["input_tokens"] >= 1
        assert entry["output_tokens"] >= max(0, min(count - 4, 4))
    assert entry["events"] == count
    wait_for(lambda: cancelled, 5)
    assert cancelled[0] < 1.0
    wait_for(lambda: gateway.in_flight() == 0, 5)


def test_a_caller_that_leaves_before_the_head(gateway: GatewayProcess, upstream: Upstream) -> None:
    gone: list[bool] = []
    upstream.does(lambda _request, wire: gone.append(wire.gone(5)))
    before = len(gateway.rows())
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests, 5)
    wait_for(lambda: gone == [True], 5)
    rows = wait_for(lambda: (rows := gateway.rows())[before:] and rows[before:], 5)
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    assert rows[0]["attempts"][0]["provider_key"] == "up"


def test_a_caller_that_leaves_while_it_waits_for_the_next_attempt(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 5}))
    upstream.replies({}, 500, retry_after="3")
    before = len(gateway.rows())
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(json.dumps({"model": ALIAS, "input": "Hi."}).encode()))
        wait_for(lambda: upstream.requests, 5)
        time.sleep(0.2)
    rows = wait_for(lambda: (rows := gateway.rows())[before:] and rows[before:], 2.5)
    assert [row["status"] for row in rows] == [499]
    assert len(upstream.requests) == 1


def test_a_caller_that_leaves_within_its_own_body(gateway: GatewayProcess, upstream: Upstream) -> None:
    before = len(gateway.rows())
    connections = upstream.connections
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head(b'{"model": "gpt', 1000))
        time.sleep(0.1)
    rows = wait_for(lambda: (rows := gateway.rows())[before:] and rows[before:], 5)
    assert [row["status"] for row in rows] == [499]
    assert (upstream.requests, upstream.connections) == ([], connections)


def test_a_caller_that_leaves_within_a_chunked_body(gateway: GatewayProcess, upstream: Upstream) -> None:
    before = len(gateway.rows())
    start = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % CALLER.encode()
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(start + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n')
        time.sleep(0.1)
    rows = wait_for(lambda: (rows := gateway.rows())[before:] and rows[before:], 5)
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:  # one that stays, and is wrong, is told so
        caller.sendall(start + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n0\r\n\r\n')
        assert caller.recv(65536).startswith(b"HTTP/1.1 400 ")
    wait_for(lambda: len(gateway.rows()) == before + 2, 5)


@pytest.mark.parametrize(
    "rest",
    [
        b'Content-Length: 100\r\n\r\n{"model":"m"',
        b'Content-Length: 100000\r\n\r\n{"model":"m"',
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod\r\n',
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"m',
    ],
)
def test_a_caller_that_ends_its_body_too_early_and_listens(gateway: GatewayProcess, rest: bytes) -> None:
    """For the records it left, as one that closes both ways does; but it is told, and not that the gateway failed."""
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        start = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % CALLER.encode()
        caller.sendall(start + rest)
        caller.shutdown(socket.SHUT_WR)
        said = b""
        while more := caller.recv(65536):
            said += more
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"The request body ended before it was complete." in said
    id_ = said.split(b"x-penstock-request-id: ")[1].split(b"\r\n")[0].decode()
    entry = gateway.entry(id_)
    assert (entry["status"], entry["error"]) == (499, "client_disconnected")


def test_what_the_provider_never_had_is_not_charged(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The caller leaves while its request is still being sent upstream, to somebody who does not read."""
    limited = {"rate_limit": {"tpm": 20_000_000}}
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        gateway.reload(resources(f"http://127.0.0.1:{deaf.getsockname()[1]}", caller=limited))
        before = len(gateway.rows())
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(head(json.dumps({"model": ALIAS, "input": "word " * 4_000_000}).encode()))
            taken, _ = deaf.accept()
            time.sleep(0.3)
        rows = wait_for(lambda: (rows := gateway.rows())[before:] and rows[before:], 10)
        taken.close()
    assert [(row["status"], row["error"]) for row in rows] == [(499, "client_disconnected")]
    assert (rows[0]["usage_source"], rows[0]["input_tokens"], rows[0]["output_tokens"]) == ("none", 0, 0)
    gateway.reload(resources(upstream.url, caller=limited))
    reply = gateway.respond()
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) > 19_990_000
    gateway.entry(reply)


def test_a_slot_is_free_again_when_its_caller_has_left(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"rate_limit": {"concurrency": 1}}))
    done = threading.Event()

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        wire.chunk(EVENTS[0])
        done.set()
        wire.gone(10)

    for _ in range(3):
        upstream.does(script)
        done.clear()
        stream = gateway.stream()
        stream.event()
        assert done.wait(5)
        assert gateway.respond().status == 429
        stream.close()
        upstream.does(answer)
        reply = wait_for(lambda: (reply := gateway.respond()).status == 200 and reply, 3, "a free slot")
    gateway.entry(reply)


def test_a_caller_that_leaves_at_any_byte(gateway: GatewayProcess, upstream: Upstream) -> None:
    """At many offsets of the reply, head included: exactly one record each, and no connection is left open."""
    upstream.streams(EVENTS, pause_s=0.002)
    before = len(gateway.rows())
    total = 0
    for limit in range(1, 4000, 160):
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(head(stream_body()))
            seen = b""
            while len(seen) < limit and not seen.endswith(b"0\r\n\r\n"):
                seen += caller.recv(min(240, limit - len(seen)))
        total += 1
    rows = wait_for(lambda: len(rows := gateway.rows()) >= before + total and rows, 10)
    assert len(rows) == before + total
    assert len({row["request_id"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows[before:]} <= {200, 499}
    wait_for(lambda: gateway.in_flight() == 0, 5)
    wait_for(lambda: gateway.config()["workers"][0]["upstream_connections"] <= 2, 5)


def test_many_leave_at_once_and_the_rest_is_served(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.streams(EVENTS, pause_s=0.02)
    before = len(gateway.rows())
    statuses: list[int] = []

    def stay() -> None:
        stream = gateway.stream()
        if stream.rest() == b"".join(EVENTS):
            statuses.append(stream.status)

    def leave() -> None:
        stream = gateway.stream()
        stream.event()
        stream.close()

    threads = [threading.Thread(target=stay if n % 2 else leave) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 20
    rows = wait_for(lambda: len(rows := gateway.rows()) >= before + 40 and rows, 10)
    assert sorted(row["status"] for row in rows[before:]) == [200] * 20 + [499] * 20

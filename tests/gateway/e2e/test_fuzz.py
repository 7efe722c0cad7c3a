"""Random mutations of requests and replies: each request gets a reply and an entry, and nothing leaks."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import (
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_events,
    normal_reply,
    response_body,
    response_events,
)

REQUESTS = 250
ROUTES = ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings")


@pytest.fixture(scope="module", params=["plain", "buffer", "window"])
def fuzzed(request: Any, server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    guards = [] if request.param == "plain" else [keyword("words", "BLOCKME", "ünsäglich")]
    mode = {} if request.param == "plain" else {"guardrails": {"stream_mode": request.param}}
    settings = resources(server.url, model={"timeout": 20_000, "stream_timeout": 20_000}, guardrails=guards)
    process = GatewayProcess(tmp_path_factory.mktemp("fuzz"), settings, **mode)
    yield process
    process.stop()


def assert_no_errors_or_leaks(gateway: GatewayProcess) -> None:
    wait_for(lambda: gateway.in_flight() == 0, what="the end of all requests")
    wait_for(lambda: gateway.config()["workers"][0]["upstream_connections"] <= 3, what="the end of all connections")
    assert "internal error" not in gateway.log_text()
    assert "Traceback" not in gateway.log_text()
    assert "ended with status" not in gateway.log_text()


def mutated(draw: random.Random, data: bytes) -> bytes:
    data = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        position = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[position:position] = draw.randbytes(draw.randint(1, 8))
            case 1:
                del data[position : position + draw.randint(1, 20)]
            case 2:
                data[position:position] = draw.choice(
                    [b'"', b"\\", b"{", b"}", b"[", b"null", b"\\ud800", b"\xff", b"\r\n\r\n", b"\0"]
                )
            case 3:
                data[position:position] = data[position : position + draw.randint(1, 40)]
            case 4:
                data[position : position + 1] = bytes([draw.randrange(256)])
    return bytes(data)


def bodies(draw: random.Random) -> bytes:
    base: dict[str, Any] = {"model": ALIAS, "stream": draw.choice([True, False, 1, "true", None])}
    base["input"] = draw.choice(
        ["text", ["a"], [{"role": "user", "content": "x"}], {"deep": [[[{}]]]}, 7, None, "BLOCKME"]
    )
    base["messages"] = draw.choice([[{"role": "user", "content": "x"}], "x", [1], [{"content": [{"text": 3}]}]])
    base["max_output_tokens"] = draw.choice([5, -1, 1e300, "9", None, [], 2**70])
    data = json.dumps(base).encode()
    return mutated(draw, data) if draw.random() < 0.7 else data


def test_mutated_request_bodies_get_a_reply_and_an_entry(fuzzed: GatewayProcess, upstream: Upstream) -> None:
    draw = random.Random(1)
    upstream.use_script(reply_to_valid_json)
    statuses = set()
    expected = len(fuzzed.ledger_rows())
    for _ in range(REQUESTS):
        reply = fuzzed.post(draw.choice(ROUTES), bodies(draw))
        assert reply.status in (200, 400, 404, 422), reply
        assert reply.json
        statuses.add(reply.status)
        expected += reply.status != 404  # an unknown model has no entry
    assert {200, 400} <= statuses
    wait_for(lambda: len(fuzzed.ledger_rows()) == expected, what="an entry for each request")
    assert_no_errors_or_leaks(fuzzed)


def reply_to_valid_json(request: ReceivedRequest, connection: ScriptedConnection) -> None:
    json.loads(request.body)  # the upstream only gets valid JSON
    connection.reply(200, response_body())


def test_mutated_request_heads_cause_no_internal_error(fuzzed: GatewayProcess, upstream: Upstream) -> None:
    draw = random.Random(2)
    upstream.use_script(normal_reply)
    body = json.dumps({"model": ALIAS, "input": "x"}).encode()
    head = (
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n"
        b"X-Penstock-Request-Id: abc\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Length: %d\r\n\r\n"
        % (CALLER.encode(), len(body))
    )
    statuses = set()
    for _ in range(REQUESTS):
        with socket.create_connection(("127.0.0.1", fuzzed.port), 5) as caller:
            caller.settimeout(0.3)
            try:
                caller.sendall(mutated(draw, head) + body)
                reply = caller.recv(65536)
            except (TimeoutError, OSError):
                continue  # the gateway waits for more, or has closed the connection
        if match := re.match(rb"HTTP/1.1 (\d+)", reply):
            statuses.add(int(match[1]))
    assert 200 in statuses
    assert 500 not in statuses
    assert_no_errors_or_leaks(fuzzed)


@pytest.mark.slow
def test_mutated_upstream_streams_cause_no_internal_error(fuzzed: GatewayProcess, upstream: Upstream) -> None:
    draw = random.Random(3)
    whole = {
        "/v1/responses": b"".join(response_events(["Hello", " wörld", " BLOCK", "ME"])),
        "/v1/chat/completions": b"".join(chat_events(["Hello", " wörld", " BLOCK", "ME"])),
    }
    statuses = set()
    for _ in range(REQUESTS):
        route = draw.choice(list(whole))
        data = mutated(draw, whole[route]) if draw.random() < 0.8 else draw.randbytes(draw.randrange(400))
        size = draw.choice([1, 3, 17, 200, 5000])
        pieces = [data[position : position + size] for position in range(0, min(len(data), 150 * size), size)]
        cut = draw.random() < 0.2

        def script(
            request: ReceivedRequest, connection: ScriptedConnection, pieces: list[bytes] = pieces, cut: bool = cut
        ) -> None:
            connection.start()
            connection.raw(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
            if cut:
                connection.reset()
            else:
                connection.end()

        upstream.use_script(script)
        stream = fuzzed.stream(route)
        stream.read_rest()
        statuses.add(stream.status)
    assert statuses <= {200, 422, 502}
    assert 200 in statuses
    assert_no_errors_or_leaks(fuzzed)


@pytest.mark.slow
def test_mutated_upstream_replies_cause_no_internal_error(fuzzed: GatewayProcess, upstream: Upstream) -> None:
    draw = random.Random(4)
    body = json.dumps(response_body("Hello")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: r\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    statuses = set()
    for _ in range(REQUESTS):
        reply = mutated(draw, head) + body if draw.random() < 0.5 else head + mutated(draw, body)

        def script(request: ReceivedRequest, connection: ScriptedConnection, reply: bytes = reply) -> None:
            connection.raw(reply)
            connection.reusable = False

        upstream.use_script(script)
        answered = fuzzed.respond()
        statuses.add(answered.status)
        assert answered.status != 500
        if answered.status >= 400:
            assert answered.error["message"]
    assert {200, 502} <= statuses
    assert_no_errors_or_leaks(fuzzed)

"""Upstream errors, timeouts, invalid replies, connections and backpressure."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, UPSTREAM_SECRET, GatewayProcess, keyword, resources
from support.ports import closed_port
from support.programs import wait_for
from support.scripted_upstream import (
    CHAT_USAGE,
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_events,
    normal_reply,
    response_body,
    response_events,
)

# -- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 429])
def test_upstream_4xx_is_relayed_with_its_error_object(
    gateway: GatewayProcess, upstream: Upstream, status: int, stream: bool
) -> None:
    error = {"message": "Bad `top_p`.", "type": "invalid_request_error", "param": "top_p", "code": "out_of_range"}
    upstream.reply_with({"error": error}, status, retry_after="7")
    reply = gateway.respond(stream=stream)
    assert (reply.status, reply.error) == (status, error)
    assert reply.headers["retry-after"] == "7"
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["error"]) == (status, "invalid_request_error")
    assert entry["attempts"][0]["status"] == status


def test_retry_after_date_is_passed_on(gateway: GatewayProcess, upstream: Upstream) -> None:
    date = "Fri, 31 Dec 2099 23:59:59 GMT"
    upstream.reply_with({"error": {"message": "Later."}}, 429, retry_after=date)
    reply = gateway.respond()
    assert (reply.status, reply.headers["retry-after"]) == (429, date)


@pytest.mark.parametrize("enveloped", [True, False])
def test_error_with_numeric_code_or_without_envelope_is_relayed(
    gateway: GatewayProcess, upstream: Upstream, enveloped: bool
) -> None:
    """Some servers send numbers as codes, and some leave out the envelope."""
    error = {"message": "No such model.", "type": "NotFoundError", "param": "model", "code": 404}
    upstream.reply_with({"error": error} if enveloped else {"object": "error", **error}, 404)
    reply = gateway.respond()
    assert (reply.status, reply.error) == (404, error)


def test_compressed_error_is_decoded(gateway: GatewayProcess, upstream: Upstream) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "code": "nope"}
    upstream.reply_with(gzip.compress(json.dumps({"error": error}).encode()), 400, content_encoding="gzip")
    assert gateway.respond().error == error


def test_compressed_error_that_expands_a_thousandfold_is_not_decoded(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    error = {"message": "No." + " " * 3_000_000, "type": "invalid_request_error"}
    upstream.reply_with(gzip.compress(json.dumps({"error": error}).encode()), 400, content_encoding="gzip")
    message = "The upstream answered with status 400."
    assert gateway.respond().error == {"message": message, "type": "upstream_error", "code": "upstream_error"}


@pytest.mark.parametrize("value", ["7", "1.5", "Fri, 31 Dec 2099 23:59:59 GMT"])
def test_retry_after_is_passed_on_with_a_502(gateway: GatewayProcess, upstream: Upstream, value: str) -> None:
    upstream.reply_with({}, 503, retry_after=value)
    reply = gateway.respond()
    assert (reply.status, reply.headers["retry-after"]) == (502, value)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "passed"),
    [("86400", "86400"), ("86401", "86400"), ("86400.5", "86400"), ("315360000", "86400"), ("999999999", "86400")],
)
def test_retry_after_of_more_than_a_day_is_shortened(
    gateway: GatewayProcess, upstream: Upstream, status: int, value: str, passed: str
) -> None:
    upstream.reply_with({"error": {"message": "Later."}}, status, retry_after=value)
    assert gateway.respond().headers["retry-after"] == passed


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("value", [UPSTREAM_SECRET, "soon", "-1", "\xb2", "1e9", "Fri, 31 Dec 2099"])
def test_invalid_retry_after_is_not_passed_on(
    gateway: GatewayProcess, upstream: Upstream, status: int, value: str
) -> None:
    upstream.reply_with({"error": {"message": "Later."}}, status, retry_after=value)
    reply = gateway.respond()
    assert reply.status == (429 if status == 429 else 502)
    assert "retry-after" not in reply.headers


def test_error_that_is_not_json_is_not_passed_on(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with(b"<html>nginx on host-17</html>", 404)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (404, "upstream_error")
    assert reply.error["message"] == "The upstream answered with status 404."


def test_long_error_message_is_truncated(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with({"error": {"message": "no such thing " * 200}}, 404)
    assert len(gateway.respond().error["message"]) == 1024


def test_upstream_401_is_an_error_of_the_gateway(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with({"error": {"message": "Incorrect API key provided.", "type": "auth"}}, 401)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "upstream_auth_error")
    assert "Incorrect" not in reply.error["message"]
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["attempts"][0]["status"]) == (502, 401)


@pytest.mark.parametrize("mask", ["*" * 20, "...", "…", "••••"])
def test_half_masked_provider_secret_is_redacted(gateway: GatewayProcess, upstream: Upstream, mask: str) -> None:
    shown = UPSTREAM_SECRET[:6] + mask + UPSTREAM_SECRET[-4:]
    upstream.reply_with({"error": {"message": f"Quota of {shown} exceeded. Wait..."}}, 429)
    assert gateway.respond().error["message"] == "Quota of <redacted> exceeded. Wait..."


def test_provider_secret_is_redacted_in_errors(gateway: GatewayProcess, upstream: Upstream) -> None:
    message = f"Incorrect API key provided: {UPSTREAM_SECRET}."
    upstream.reply_with(
        {"error": {"message": message, "type": "auth", "code": UPSTREAM_SECRET}}, 403, x_echo=UPSTREAM_SECRET
    )
    reply = gateway.respond()
    assert reply.status == 403
    assert UPSTREAM_SECRET not in str(reply.headers)
    assert UPSTREAM_SECRET not in reply.body.decode()


def test_query_of_the_base_url_is_redacted_in_errors(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The query may contain a credential, like a header."""
    gateway.reload(resources(f"{upstream.url}?key=sk-in-the-query"))
    upstream.reply_with({"error": {"message": "Wrong key: sk-in-the-query.", "type": "auth"}}, 403)
    reply = gateway.respond()
    assert upstream.requests[0].path == "/v1/responses?key=sk-in-the-query"
    assert (reply.status, reply.error["message"]) == (403, "Wrong key: <redacted>.")


def test_upstream_error_texts_are_inspected(gateway: GatewayProcess, upstream: Upstream) -> None:
    """A provider's error may quote the output of its model."""
    masks = {"name": "mail", "kind": "pii", "detectors": [{"type": "email", "action": "mask"}]}
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nightjar", hook_point="output"), masks]))
    upstream.reply_with({"error": {"message": "It value: Nightjar.", "type": "policy", "code": 7}}, 400)
    for stream in (False, True):
        reply = gateway.respond(stream=stream)
        assert (reply.status, reply.error["type"]) == (422, "content_filter")
        assert b"ightjar." not in reply.body
        entry = gateway.ledger_entry(reply)
        assert (entry["blocked"], entry["attempts"][0]["status"]) == (1, 400)
        assert [(hit["guardrail"], hit["action"]) for hit in entry["guardrails"]] == [("words", "blocked")]
    error = {"message": "Not for bob@example.com.", "type": "policy", "code": 7, "param": "eve@example.com"}
    upstream.reply_with({"error": error}, 400, retry_after="3")
    reply = gateway.respond()
    masked = {"message": "Not for [EMAIL_REDACTED].", "type": "policy", "code": 7, "param": "[EMAIL_REDACTED]"}
    assert (reply.status, reply.error, reply.headers["retry-after"]) == (400, masked, "3")
    upstream.reply_with({"error": error}, 500)  # the message is the gateway's
    assert gateway.respond().error["message"] == "The upstream answered with status 500."


@pytest.mark.parametrize("status", [301, 500, 503])
def test_other_upstream_statuses_become_502(gateway: GatewayProcess, upstream: Upstream, status: int) -> None:
    upstream.reply_with({"error": {"message": "inside"}}, status)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    assert b"inside" not in reply.body


def test_refused_connection_is_a_transport_error(gateway: GatewayProcess, upstream: Upstream) -> None:
    with closed_port() as port:
        gateway.reload(resources(f"http://127.0.0.1:{port}"))
        reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "transport_error")
    assert "127.0.0.1" not in reply.error["message"]
    assert gateway.ledger_entry(reply)["attempts"][0]["error"] == "transport"


@pytest.mark.parametrize("value", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{}", b""])
def test_invalid_or_incomplete_reply_is_a_transport_error(
    gateway: GatewayProcess, upstream: Upstream, value: bytes
) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.raw(value)
        connection.reset()

    upstream.use_script(script)
    assert gateway.respond().error["type"] == "transport_error"


def test_compressed_reply_is_decoded(gateway: GatewayProcess, upstream: Upstream) -> None:
    """Although the gateway does not ask for compression."""
    upstream.reply_with(gzip.compress(json.dumps(response_body("Zipped.")).encode()), content_encoding="gzip")
    reply = gateway.respond()
    assert reply.json == response_body("Zipped.")
    assert gateway.ledger_entry(reply)["output_tokens"] == 23
    assert upstream.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("coding", "body"), [("gzip", b"\x1f\x8b rubbish"), ("br", b"\x0b\x02\x80{}\x03"), ("zstd", b"(\xb5/\xfd")]
)
def test_undecodable_reply_is_502(
    gateway: GatewayProcess, upstream: Upstream, coding: str, body: bytes, stream: bool
) -> None:
    """It cannot be inspected."""
    kind = "text/event-stream" if stream else "application/json"
    upstream.reply_with(body, content_encoding=coding, content_type=kind)
    reply = gateway.respond(stream=stream)
    assert (reply.status, reply.error["type"]) == (502, "upstream_decode_error")
    assert gateway.ledger_entry(reply)["attempts"][0]["error"] == "decode"


# -- time -----------------------------------------------------------------------------------------------------------------


def test_stall_before_the_head_is_504(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"timeout": 200, "stream_timeout": 200}))
    closed: list[bool] = []
    upstream.use_script(lambda _request, connection: closed.append(connection.closed_within()))
    for stream in (False, True):
        reply = gateway.respond(stream=stream)
        assert (reply.status, reply.error["type"]) == (504, "timeout")
        assert "ms" in reply.error["message"]
        entry = gateway.ledger_entry(reply)
        assert (entry["attempts"][0]["error"], entry["usage_source"]) == ("timeout", "reserved")
    wait_for(lambda: closed == [True, True])


def test_stall_before_the_first_event_is_504(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"stream_timeout": 200}))

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.closed_within()

    upstream.use_script(script)
    assert gateway.respond(stream=True).status == 504


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("ending", ["stall", "cut"])
def test_incomplete_stream_ends_with_an_error_event(
    gateway: GatewayProcess, upstream: Upstream, route: str, ending: str
) -> None:
    gateway.reload(resources(upstream.url, model={"stream_timeout": 300 if ending == "stall" else 60_000}))
    events = response_events(["Hello", " there"]) if route == "/v1/responses" else chat_events(["Hello", " there"])
    half = [*events[:-2], events[-2][:30]]

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start_with(*half)
        if ending == "stall":
            connection.closed_within()
        else:
            connection.reset()

    upstream.use_script(script)
    stream = gateway.stream(route)
    body = stream.read_rest()
    if route == "/v1/responses":
        # the error is a separate event after the incomplete one
        assert body.startswith(b"".join(half) + b"\n\nevent: error\ndata: ")
    assert b'\n\ndata: {"error":' in body or route == "/v1/responses"
    last = json.loads(body.rsplit(b"data: ", 1)[-1])
    kind = "timeout" if ending == "stall" else "stream_aborted"
    assert (last.get("code") or last["error"]["type"]) == kind
    assert b"[DONE]" not in body
    entry = gateway.ledger_entry(stream)
    source = "reserved" if ending == "stall" else "estimated"
    assert (entry["error"], entry["finish"], entry["usage_source"]) == (kind, "cut", source)
    assert entry["status"] == (504 if ending == "stall" else 502)
    assert entry["output_tokens"] >= 1


@pytest.mark.slow
def test_stall_after_the_last_event_is_a_success(gateway: GatewayProcess, upstream: Upstream) -> None:
    events = response_events(["Hello"])

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(b"".join(events))
        connection.closed_within()

    upstream.use_script(script)
    stream = gateway.stream()
    assert stream.read_rest() == b"".join(events)
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
def test_comment_is_relayed_at_once(gateway: GatewayProcess, upstream: Upstream, route: str) -> None:
    events = response_events(["Hello"]) if route == "/v1/responses" else chat_events(["Hello"])
    resume = threading.Event()
    in_time: list[bool] = []

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(b":\n\n")
        in_time.append(resume.wait(60))
        for piece in events:
            connection.chunk(piece)
        connection.end()

    upstream.use_script(script)
    stream = gateway.stream(route)
    assert stream.next_event() == b":\n\n"
    resume.set()
    assert stream.read_rest().count(b"data: ") == len(events)
    assert in_time == [True]


def test_empty_stream_is_502(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with([])
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (502, "stream_aborted")
    entry = gateway.ledger_entry(reply)
    assert (entry["usage_source"], entry["output_tokens"]) == ("reserved", 1024)


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
def test_stream_with_only_comments_is_charged_like_one_that_was_cut(
    gateway: GatewayProcess, upstream: Upstream, route: str
) -> None:
    upstream.stream_with([b": ping\n\n", b": ping\n\n"])
    stream = gateway.stream(route, {"max_tokens": 700, "max_output_tokens": 700})
    assert b"stream_aborted" in stream.read_rest()
    entry = gateway.ledger_entry(stream)
    assert (entry["usage_source"], entry["output_tokens"]) == ("reserved", 700)


@pytest.mark.slow
def test_slow_stream_does_not_time_out(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"timeout": 2000, "stream_timeout": 2000}))
    events = response_events(["a", "b", "c"])
    upstream.stream_with(events, pause_s=0.2)  # 2.2 s in all
    assert gateway.stream().read_rest() == b"".join(events)


# -- requests and connections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1/responses"),
        ("/", "/v1/responses"),
        ("/v1/", "/v1/responses"),
        ("/v2", "/v2/responses"),
        ("/api/paas/v4", "/api/paas/v4/responses"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/chat/completions", "/v1/responses"),
        ("?api-version=2024-10-21", "/v1/responses?api-version=2024-10-21"),
        ("/openai/v1/responses/?a=1&b=/chat/completions", "/openai/v1/responses?a=1&b=/chat/completions"),
    ],
)
def test_base_url_is_joined_with_the_route(gateway: GatewayProcess, upstream: Upstream, base: str, path: str) -> None:
    gateway.reload(resources(upstream.url + base))
    assert gateway.respond().status == 200
    assert upstream.requests[0].path == path


def test_provider_key_adds_headers_and_body_fields_and_renames_params(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    request = {
        "default_headers": {"X-Org": "o-1"},
        "default_body_fields": {"store": False, "user": "gw"},
        "param_renames": {"max_tokens": "max_output_tokens"},
    }
    gateway.reload(resources(upstream.url, provider_key={"request": request}))
    assert gateway.respond(max_tokens=5, user="me").status == 200
    [sent] = upstream.requests
    assert sent.headers["x-org"] == "o-1"
    assert sent.json == {"model": "gpt-4o-mini", "input": "Hi.", "max_output_tokens": 5, "user": "me", "store": False}


@pytest.mark.parametrize(
    "content", [b'"half \\ud83d"', b"[" * 300 + b"]" * 300, b"[1.0e2, 123456789012345678901234567890]"]
)
def test_provider_key_fields_change_no_other_byte(gateway: GatewayProcess, upstream: Upstream, content: bytes) -> None:
    request = {"default_body_fields": {"store": False}, "param_renames": {"max_tokens": "max_output_tokens"}}
    gateway.reload(resources(upstream.url, provider_key={"request": request}))
    body = b'{"model": "%b", "max_tokens":  5, "input": %b }' % (ALIAS.encode(), content)
    assert gateway.post("/v1/responses", body).status == 200
    expected = b'{"model": "gpt-4o-mini", "max_output_tokens":  5, "input": %b ,"store":false}' % content
    assert upstream.requests[0].body == expected


def test_gateway_headers_override_default_headers(gateway: GatewayProcess, upstream: Upstream) -> None:
    """Headers that the gateway sets override `default_headers`, which override the default ones. None is sent twice."""
    default_headers = {
        "user-agent": "Ours/1",
        "ACCEPT": "application/json",
        "Accept-Encoding": "br",
        "X-Penstock-Request-Id": "x",
        "Content-Type": "text/plain",
    }
    gateway.reload(resources(upstream.url, provider_key={"request": {"default_headers": default_headers}}))
    reply = gateway.respond()
    [sent] = upstream.requests
    names = [line.partition(":")[0].lower() for line in sent.head.split("\r\n")[1:] if line]
    assert len(names) == len(set(names))
    assert (sent.headers["user-agent"], sent.headers["accept"]) == ("Ours/1", "application/json")
    assert (sent.headers["accept-encoding"], sent.headers["content-type"]) == ("identity", "application/json")
    assert sent.headers["x-penstock-request-id"] == reply.id


def test_caller_headers_are_not_sent_upstream(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.respond(headers={"Cookie": "a=b", "X-Api-Key": "sk-other", "X-Custom": "1", "OpenAI-Organization": "org"})
    assert set(upstream.requests[0].headers) == {
        "host",
        "authorization",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "user-agent",
        "x-penstock-request-id",
    }


def test_upstream_connections_are_reused(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.respond()
    before = upstream.connections
    for _ in range(10):
        gateway.respond()
        gateway.stream().read_rest()
    assert upstream.connections == before


def test_connection_closed_by_the_provider_is_replaced(gateway: GatewayProcess, upstream: Upstream) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        normal_reply(request, connection)
        connection.reusable = False

    upstream.use_script(script)
    for _ in range(10):
        assert gateway.respond().status == 200
        # A request that the provider's system acknowledges before the close is not sent again: it may have been read.
        wait_for(lambda: upstream.open == 0, what="the provider's close")


@pytest.mark.parametrize("delay_s", [0, 0.1])
def test_request_that_the_provider_received_is_not_sent_again(
    gateway: GatewayProcess, upstream: Upstream, delay_s: float
) -> None:
    """The connection is reused, and the provider closes it without a reply: it may have billed the request."""
    assert gateway.respond().status == 200
    before = len(upstream.requests)

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        time.sleep(delay_s)
        connection.reset()

    upstream.script = script
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "transport_error")
    assert len(upstream.requests) == before + 1
    assert [attempt["error"] for attempt in gateway.ledger_entry(reply)["attempts"]] == ["transport"]


@pytest.mark.slow
def test_slow_caller_slows_down_its_upstream(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The gateway stops reading from the provider while the caller does not read: 40 MB do not fit into the buffers."""
    delta = response_events(["z" * 20_000])[4]
    sent = [0]
    finished = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for _ in range(2000):
            connection.chunk(delta)
            sent[0] += len(delta)
        connection.chunk(response_events(["z"])[-1])
        connection.end()
        finished.set()

    upstream.use_script(script)
    stream = gateway.stream(timeout=60)
    stream.next_event()
    assert not finished.wait(2)
    held = sent[0]
    assert held < 30_000_000
    # other requests are served meanwhile, and the rest arrives when the caller reads on
    upstream.script, before = normal_reply, upstream.script
    assert gateway.respond().status == 200
    upstream.script = before
    assert len(stream.received) + len(stream.read_rest()) > 2000 * 20_000
    assert gateway.ledger_entry(stream)["status"] == 200


def test_caller_that_does_not_read_is_499_and_no_upstream_failure(gateway: GatewayProcess, upstream: Upstream) -> None:
    """It counts as a disconnect, and the target has no cooldown."""
    direct = {"display_name": "a", "provider": "openai", "model_name": "a", "provider_key": "up", "retries": 0}
    group = {"display_name": "group", "routing": {"targets": [{"model": "a"}]}}
    gateway.reload(resources(upstream.url, models=[direct | {"stream_timeout": 500}, group]))
    delta = response_events(["z" * 20_000])[4]

    def flood(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        while True:
            connection.chunk(delta)

    upstream.use_script(flood)
    before = len(gateway.ledger_rows())
    body = json.dumps({"model": "group", "input": "Hi.", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        caller.sendall(head.encode() + body)
        [row] = wait_for(lambda: gateway.ledger_rows()[before:])
        received = b""
        while more := caller.recv(1 << 20):
            received = received[-1000:] + more
            if received.endswith(b"0\r\n\r\n"):
                break
    assert (row["status"], row["error"], row["finish"]) == (499, "client_disconnected", "disconnected")
    assert row["attempts"][0]["error"] is None
    assert b'"code":"stream_aborted"' in received  # in case the caller reads on later
    upstream.use_script(normal_reply)
    assert gateway.post("/v1/responses", {"model": "group", "input": "Hi."}).status == 200


def test_large_bodies_pass_both_ways(gateway: GatewayProcess, upstream: Upstream) -> None:
    text = "A sentence of some length. " * 200_000
    upstream.reply_with(response_body(text))
    reply = gateway.respond(text)
    assert reply.status == 200
    assert upstream.requests[0].json["input"] == text
    assert reply.json["output"][0]["content"][0]["text"] == text


def test_upstream_name_with_several_addresses_is_reached(gateway: GatewayProcess, upstream: Upstream) -> None:
    """`localhost` resolves to ::1 first on many machines, where the upstream does not listen."""
    gateway.reload(resources(f"http://localhost:{upstream.port}"))
    assert [gateway.respond().status for _ in range(3)] == [200] * 3
    gateway.reload(resources("http://no-such-name.invalid"))
    assert gateway.respond().error["type"] == "transport_error"


def test_alias_is_restored_in_chat_replies(gateway: GatewayProcess, upstream: Upstream) -> None:
    chat = {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]}
    reply = gateway.post("/v1/chat/completions", chat)
    assert reply.json["model"] == ALIAS
    pieces = chat_events(['say "model":"gpt-4o-mini-2024-07-18" ', "twice"])
    whole = b"".join(pieces)
    upstream.stream_with([whole[at : at + 50] for at in range(0, len(whole), 50)])
    stream = gateway.stream("/v1/chat/completions")
    chunks = [json.loads(line[6:]) for line in stream.read_rest().splitlines() if line.startswith(b"data: {")]
    assert {chunk["model"] for chunk in chunks} == {ALIAS}
    assert chunks[1]["choices"][0]["delta"]["content"] == 'say "model":"gpt-4o-mini-2024-07-18" '


@pytest.mark.parametrize("guarded", [False, True])
def test_alias_is_restored_however_the_upstream_spells_model(
    gateway: GatewayProcess, upstream: Upstream, guarded: bool
) -> None:
    """Some upstreams start with an empty name, and some have a nested `model` before the top-level one."""
    if guarded:
        gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nothing-of-this")]))
    pieces = [
        b'data: {"model":"","choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"parts": [{"model":"small"}], "model": "gpt-4o-2024-08-06", "choices": []}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": "Hi."}}], "model":"other"}\n\n',
    ]
    upstream.stream_with([*pieces, b"data: [DONE]\n\n"])
    body = gateway.stream("/v1/chat/completions").read_rest()
    named = [b'"model":""', b'"model": "gpt-4o-2024-08-06"', b'"model":"other"']
    for piece, name in zip(pieces, named, strict=True):
        shown = name.split(b'"')[2] + b'"' + ALIAS.encode() + b'"'
        assert piece.replace(name, b'"model"' + shown) in body
    upstream.reply_with(b'{"x": {"model":"inner"}, "model" : "gpt-x", "choices": []}')
    reply = gateway.post("/v1/chat/completions", {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]})
    assert reply.body == b'{"x": {"model":"inner"}, "model" : "%b", "choices": []}' % ALIAS.encode()


@pytest.mark.parametrize("depth", [20, 900])
def test_tokens_are_estimated_for_deeply_nested_bodies(gateway: GatewayProcess, upstream: Upstream, depth: int) -> None:
    """The upstream reports no usage, and the body is nested close to Python's recursion limit."""
    gateway.reload(resources(upstream.url, caller={"rate_limit": {"tpm": 100_000}}))
    upstream.stream_with(chat_events(["word " * 400]))
    body = (
        b'{"model": "%b", "stream": true, "max_tokens": 5, "text": %b, "messages": [{"role": "user", "content": "%b"}]}'
    )
    deep = b"[" * depth + b'"x"' + b"]" * depth
    reply = gateway.post("/v1/chat/completions", body % (ALIAS.encode(), deep, b"word " * 800))
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["usage_source"]) == (200, "estimated")
    assert (entry["input_tokens"], entry["output_tokens"]) == (1001, 500)


# -- usage of streams -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": {"include_usage": False, "x": 1}}, {"stream_options": None}]
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_gateway_asks_for_the_usage_of_a_stream_and_keeps_it(
    gateway: GatewayProcess, upstream: Upstream, route: str, options: dict[str, Any]
) -> None:
    upstream.stream_with(chat_events(["Hello"], usage=CHAT_USAGE))
    stream = gateway.stream(route, {"prompt": "Hi.", "messages": ["Hi."], **options})
    assert b"prompt_tokens" not in stream.read_rest()
    sent = (options.get("stream_options") or {}) | {"include_usage": True}
    assert upstream.requests[0].json["stream_options"] == sent
    entry = gateway.ledger_entry(stream)
    assert (entry["usage_source"], entry["input_tokens"], entry["output_tokens"]) == ("upstream", 17, 23)


def test_caller_that_asks_for_usage_gets_it(gateway: GatewayProcess, upstream: Upstream) -> None:
    events = chat_events(["Hello"], usage=CHAT_USAGE)
    upstream.stream_with(events)
    stream = gateway.stream("/v1/chat/completions", {"stream_options": {"include_usage": True}})
    assert b'"prompt_tokens": 17' in stream.read_rest()
    assert upstream.requests[0].json["stream_options"] == {"include_usage": True}


def test_usage_is_not_requested_on_the_responses_route(gateway: GatewayProcess, upstream: Upstream) -> None:
    stream = gateway.stream()
    stream.read_rest()
    assert set(upstream.requests[0].json) == {"model", "input", "stream"}


@pytest.mark.parametrize("size", [1, 3, 390])
def test_estimate_of_a_stream_does_not_depend_on_its_deltas(
    gateway: GatewayProcess, upstream: Upstream, size: int
) -> None:
    text = "abcdefghij" * 39
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    upstream.stream_with([b"".join(chat_events(pieces))])
    stream = gateway.stream("/v1/chat/completions")
    stream.read_rest()
    entry = gateway.ledger_entry(stream)
    assert (entry["usage_source"], entry["output_tokens"]) == ("estimated", 98)


# -- requests whose usage is never reported -------------------------------------------------------------------------------


def tokens_left(gateway: GatewayProcess) -> int:
    """Return the tokens that the caller's limit has left, by a request that costs few."""
    return int(gateway.respond(max_output_tokens=16).headers["x-ratelimit-remaining-tokens"])


def test_background_response_is_charged_with_its_limit(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "background", "rate_limit": {"tpm": 10_000}}))
    upstream.reply_with({**response_body(usage=None, output=[]), "status": "queued", "background": True})
    reply = gateway.respond(background=True, max_output_tokens=4000)
    entry = gateway.ledger_entry(reply)
    assert (entry["usage_source"], entry["output_tokens"]) == ("estimated", 4000)
    upstream.use_script(normal_reply)
    assert tokens_left(gateway) < 6000


def test_whole_reply_that_is_cut_is_charged_with_its_limit(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "cut", "rate_limit": {"tpm": 10_000}}))

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
        connection.reset()

    upstream.use_script(script)
    reply = gateway.respond(max_output_tokens=4000)
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["usage_source"], entry["output_tokens"]) == (502, "reserved", 4000)
    upstream.use_script(normal_reply)
    assert tokens_left(gateway) < 6000


def test_dropped_request_is_charged_with_its_limit(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "dropped", "rate_limit": {"tpm": 10_000}}))
    upstream.use_script(lambda _request, connection: connection.closed_within() and None)
    body = json.dumps({"model": ALIAS, "input": "Hi.", "max_output_tokens": 4000}).encode()
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {CALLER}\r\ncontent-length: {len(body)}\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
        caller.sendall(head.encode() + b"x-penstock-request-id: dropped-1\r\n\r\n" + body)
        wait_for(lambda: upstream.requests)
    entry = gateway.ledger_entry("dropped-1")
    assert (entry["status"], entry["usage_source"], entry["output_tokens"]) == (499, "reserved", 4000)
    upstream.use_script(normal_reply)
    assert tokens_left(gateway) < 6000


@pytest.mark.slow
def test_stream_is_ended_at_its_deadline(start: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    """Its events arrive in time, but do not end."""
    gateway = start(resources(upstream.url), upstream={"max_stream_s": 2})

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        while not connection.closed_within(0.05):
            connection.chunk(response_events()[0])

    upstream.use_script(script)
    stream = gateway.stream()
    assert json.loads(stream.read_rest().rsplit(b"data: ", 1)[-1])["code"] == "timeout"
    assert gateway.ledger_entry(stream)["status"] == 504

"""Upstreams that fail, stall, lie and hurry: errors, timeouts, retries, failover, backpressure (X-8, X-10, X-11)."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time

import pytest

from support.gateway_process import ALIAS, CALLER, UPSTREAM_SECRET, GatewayProcess, free_port, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import Received, Upstream, Wire, answer, chat_events, response_body, response_events

# -- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429])
def test_a_provider_s_error_reaches_the_caller_whole(
    gateway: GatewayProcess, upstream: Upstream, status: int, stream: bool
) -> None:
    """X-10."""
    error = {"message": "Bad `top_p`.", "type": "invalid_request_error", "param": "top_p", "code": "out_of_range"}
    upstream.replies({"error": error}, status, retry_after="7")
    reply = gateway.respond(stream=stream)
    assert (reply.status, reply.error) == (status, error)
    assert reply.headers["retry-after"] == "7"
    entry = gateway.entry(reply)
    assert (entry["status"], entry["error"]) == (status, "invalid_request_error")
    assert entry["attempts"][0]["status"] == status


def test_retry_after_as_a_date(gateway: GatewayProcess, upstream: Upstream) -> None:
    date = "Fri, 31 Dec 2099 23:59:59 GMT"
    upstream.replies({"error": {"message": "Later."}}, 429, retry_after=date)
    reply = gateway.respond()
    assert (reply.status, reply.headers["retry-after"]) == (429, date)


@pytest.mark.parametrize("enveloped", [True, False])
def test_an_error_in_other_people_s_forms(gateway: GatewayProcess, upstream: Upstream, enveloped: bool) -> None:
    """Codes may be numbers, and some servers leave out the envelope."""
    error = {"message": "No such model.", "type": "NotFoundError", "param": "model", "code": 404}
    upstream.replies({"error": error} if enveloped else {"object": "error", **error}, 404)
    reply = gateway.respond()
    assert (reply.status, reply.error) == (404, error)


def test_an_error_that_was_compressed(gateway: GatewayProcess, upstream: Upstream) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "code": "nope"}
    upstream.replies(gzip.compress(json.dumps({"error": error}).encode()), 400, content_encoding="gzip")
    assert gateway.respond().error == error


@pytest.mark.parametrize("said", ["7", "1.5", "Fri, 31 Dec 2099 23:59:59 GMT"])
def test_when_to_ask_again_is_passed_on_with_a_502(gateway: GatewayProcess, upstream: Upstream, said: str) -> None:
    upstream.replies({}, 503, retry_after=said)
    reply = gateway.respond()
    assert (reply.status, reply.headers["retry-after"]) == (502, said)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("said", [UPSTREAM_SECRET, "soon", "-1", "\xb2", "1e9", "Fri, 31 Dec 2099"])
def test_what_is_no_time_is_not_passed_on(gateway: GatewayProcess, upstream: Upstream, status: int, said: str) -> None:
    upstream.replies({"error": {"message": "Later."}}, status, retry_after=said)
    reply = gateway.respond()
    assert reply.status == (429 if status == 429 else 502)
    assert "retry-after" not in reply.headers


def test_an_error_that_is_no_json(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.replies(b"no such thing " * 200, 404)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (404, "upstream_error")
    assert len(reply.error["message"]) == 1024


def test_the_provider_s_secret_does_not_come_back(gateway: GatewayProcess, upstream: Upstream) -> None:
    message = f"Incorrect API key provided: {UPSTREAM_SECRET}."
    upstream.replies(
        {"error": {"message": message, "type": "auth", "code": UPSTREAM_SECRET}}, 401, x_echo=UPSTREAM_SECRET
    )
    reply = gateway.respond()
    assert reply.status == 401
    assert UPSTREAM_SECRET not in str(reply.headers)
    assert UPSTREAM_SECRET not in reply.body.decode()


def test_what_the_base_s_query_says_does_not_come_back(gateway: GatewayProcess, upstream: Upstream) -> None:
    """It may be a credential, as a header may."""
    gateway.reload(resources(f"{upstream.url}?key=sk-in-the-query"))
    upstream.replies({"error": {"message": "Wrong key: sk-in-the-query.", "type": "auth"}}, 401)
    reply = gateway.respond()
    assert upstream.requests[0].path == "/v1/responses?key=sk-in-the-query"
    assert (reply.status, reply.error["message"]) == (401, "Wrong key: <redacted>.")


def test_an_error_passes_the_output_guardrails(gateway: GatewayProcess, upstream: Upstream) -> None:
    """A provider's error may quote what its model was about to say."""
    masks = {"name": "mail", "kind": "pii", "detectors": [{"type": "email", "action": "mask"}]}
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nightjar", hook_point="output"), masks]))
    upstream.replies({"error": {"message": "It said: Nightjar.", "type": "policy", "code": 7}}, 400)
    for stream in (False, True):
        reply = gateway.respond(stream=stream)
        assert (reply.status, reply.error["type"]) == (422, "content_filter")
        assert b"ightjar." not in reply.body
        entry = gateway.entry(reply)
        assert (entry["blocked"], entry["attempts"][0]["status"]) == (1, 400)
        assert [(hit["guardrail"], hit["action"]) for hit in entry["guardrails"]] == [("words", "blocked")]
    error = {"message": "Not for bob@example.com.", "type": "policy", "code": 7, "param": "eve@example.com"}
    upstream.replies({"error": error}, 400, retry_after="3")
    reply = gateway.respond()
    masked = {"message": "Not for [EMAIL_REDACTED].", "type": "policy", "code": 7, "param": "[EMAIL_REDACTED]"}
    assert (reply.status, reply.error, reply.headers["retry-after"]) == (400, masked, "3")
    upstream.replies({"error": error}, 500)  # these words are ours
    assert gateway.respond().error["message"] == "The upstream answered with status 500."


@pytest.mark.parametrize("status", [301, 500, 503])
def test_other_statuses_are_the_gateway_s_502(gateway: GatewayProcess, upstream: Upstream, status: int) -> None:
    upstream.replies({"error": {"message": "inside"}}, status)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    assert b"inside" not in reply.body


def test_nobody_listens(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(f"http://127.0.0.1:{free_port()}"))
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "transport_error")
    assert "127.0.0.1" not in reply.error["message"]
    assert gateway.entry(reply)["attempts"][0]["error"] == "transport"


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{}", b""])
def test_upstreams_that_break_off(gateway: GatewayProcess, upstream: Upstream, said: bytes) -> None:
    def script(request: Received, wire: Wire) -> None:
        wire.raw(said)
        wire.cut()

    upstream.does(script)
    assert gateway.respond().error["type"] == "transport_error"


def test_compressed_replies_are_read_all_the_same(gateway: GatewayProcess, upstream: Upstream) -> None:
    """X-11: none were asked for."""
    upstream.replies(gzip.compress(json.dumps(response_body("Zipped.")).encode()), content_encoding="gzip")
    reply = gateway.respond()
    assert reply.json == response_body("Zipped.")
    assert gateway.entry(reply)["output_tokens"] == 23
    assert upstream.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("coding", "body"), [("gzip", b"\x1f\x8b rubbish"), ("br", b"\x0b\x02\x80{}\x03"), ("zstd", b"(\xb5/\xfd")]
)
def test_what_cannot_be_decoded_is_passed_on_to_nobody(
    gateway: GatewayProcess, upstream: Upstream, coding: str, body: bytes, stream: bool
) -> None:
    """X-11: it could not be inspected, and no caller asked for it."""
    kind = "text/event-stream" if stream else "application/json"
    upstream.replies(body, content_encoding=coding, content_type=kind)
    reply = gateway.respond(stream=stream)
    assert (reply.status, reply.error["type"]) == (502, "upstream_decode_error")
    assert gateway.entry(reply)["attempts"][0]["error"] == "decode"


# -- time -----------------------------------------------------------------------------------------------------------------


def test_a_stall_before_the_head(gateway: GatewayProcess, upstream: Upstream) -> None:
    """X-8."""
    gateway.reload(resources(upstream.url, model={"timeout": 200, "stream_timeout": 200}))
    gone: list[bool] = []
    upstream.does(lambda _request, wire: gone.append(wire.gone(5)))
    for stream in (False, True):
        reply = gateway.respond(stream=stream)
        assert (reply.status, reply.error["type"]) == (504, "timeout")
        assert "ms" in reply.error["message"]
        entry = gateway.entry(reply)
        assert (entry["attempts"][0]["error"], entry["usage_source"]) == ("timeout", "none")
    wait_for(lambda: gone == [True, True], 5)


def test_a_stall_before_the_first_event(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"stream_timeout": 200}))

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        wire.gone(5)

    upstream.does(script)
    assert gateway.respond(stream=True).status == 504


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("how", ["stall", "cut"])
def test_a_stream_that_breaks_off_is_told_so_within(
    gateway: GatewayProcess, upstream: Upstream, route: str, how: str
) -> None:
    gateway.reload(resources(upstream.url, model={"stream_timeout": 300}))
    events = response_events(["Hello", " there"]) if route == "/v1/responses" else chat_events(["Hello", " there"])
    half = [*events[:-2], events[-2][:30]]

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        for piece in half:
            wire.chunk(piece)
        if how == "stall":
            wire.gone(5)
        else:
            time.sleep(0.05)
            wire.cut()

    upstream.does(script)
    stream = gateway.stream(route)
    body = stream.rest()
    if route == "/v1/responses":
        # the error is an event of its own, not the end of the half one
        assert body.startswith(b"".join(half) + b"\n\nevent: error\ndata: ")
    assert b'\n\ndata: {"error":' in body or route == "/v1/responses"
    last = json.loads(body.rsplit(b"data: ", 1)[-1])
    kind = "timeout" if how == "stall" else "stream_aborted"
    assert (last.get("code") or last["error"]["type"]) == kind
    assert b"[DONE]" not in body
    entry = gateway.entry(stream)
    assert (entry["error"], entry["finish"], entry["usage_source"]) == (kind, "cut", "estimated")
    assert entry["status"] == (504 if how == "stall" else 502)
    assert entry["output_tokens"] >= 1


def test_a_stall_behind_the_last_event_is_a_success(gateway: GatewayProcess, upstream: Upstream) -> None:
    events = response_events(["Hello"])

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        wire.chunk(b"".join(events))
        wire.gone(10)

    upstream.does(script)
    stream = gateway.stream()
    assert stream.rest() == b"".join(events)
    entry = gateway.entry(stream)
    assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
def test_a_ping_arrives_when_it_is_sent(gateway: GatewayProcess, upstream: Upstream, route: str) -> None:
    events = response_events(["Hello"]) if route == "/v1/responses" else chat_events(["Hello"])
    go_on = threading.Event()
    in_time: list[bool] = []

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        wire.chunk(b":\n\n")
        in_time.append(go_on.wait(5))
        for piece in events:
            wire.chunk(piece)
        wire.end()

    upstream.does(script)
    stream = gateway.stream(route)
    assert stream.event() == b":\n\n"
    go_on.set()
    assert stream.rest().count(b"data: ") == len(events)
    assert in_time == [True]


def test_a_stream_without_any_bytes(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.streams([])
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (502, "stream_aborted")


def test_a_slow_stream_is_no_stall(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"timeout": 300, "stream_timeout": 300}))
    events = response_events(["a", "b", "c"])
    upstream.streams(events, pause_s=0.1)
    assert gateway.stream().rest() == b"".join(events)


# -- what is sent ---------------------------------------------------------------------------------------------------------


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
def test_how_a_base_is_joined(gateway: GatewayProcess, upstream: Upstream, base: str, path: str) -> None:
    """RC-14."""
    gateway.reload(resources(upstream.url + base))
    assert gateway.respond().status == 200
    assert upstream.requests[0].path == path


def test_a_provider_key_s_own_fields_and_headers(gateway: GatewayProcess, upstream: Upstream) -> None:
    """RC-4."""
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
def test_a_provider_key_s_fields_change_no_other_byte(
    gateway: GatewayProcess, upstream: Upstream, content: bytes
) -> None:
    request = {"default_body_fields": {"store": False}, "param_renames": {"max_tokens": "max_output_tokens"}}
    gateway.reload(resources(upstream.url, provider_key={"request": request}))
    body = b'{"model": "%b", "max_tokens":  5, "input": %b }' % (ALIAS.encode(), content)
    assert gateway.post("/v1/responses", body).status == 200
    expected = b'{"model": "gpt-4o-mini", "max_output_tokens":  5, "input": %b ,"store":false}' % content
    assert upstream.requests[0].body == expected


def test_whose_header_counts(gateway: GatewayProcess, upstream: Upstream) -> None:
    """What the gateway must say itself comes before what the operator says, and that before our defaults; each once."""
    given = {
        "user-agent": "Ours/1",
        "ACCEPT": "application/json",
        "Accept-Encoding": "br",
        "X-Penstock-Request-Id": "x",
        "Content-Type": "text/plain",
    }
    gateway.reload(resources(upstream.url, provider_key={"request": {"default_headers": given}}))
    reply = gateway.respond()
    [sent] = upstream.requests
    names = [line.partition(":")[0].lower() for line in sent.head.split("\r\n")[1:] if line]
    assert len(names) == len(set(names))
    assert (sent.headers["user-agent"], sent.headers["accept"]) == ("Ours/1", "application/json")
    assert (sent.headers["accept-encoding"], sent.headers["content-type"]) == ("identity", "application/json")
    assert sent.headers["x-penstock-request-id"] == reply.id


def test_nothing_of_the_caller_s_head_goes_upstream(gateway: GatewayProcess, upstream: Upstream) -> None:
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


def test_connections_are_used_again(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.respond()
    before = upstream.connections
    for _ in range(10):
        gateway.respond()
        gateway.stream().rest()
    assert upstream.connections == before


def test_a_connection_that_the_provider_closed_is_replaced(gateway: GatewayProcess, upstream: Upstream) -> None:
    def script(request: Received, wire: Wire) -> None:
        answer(request, wire)
        wire.reusable = False

    upstream.does(script)
    assert [gateway.respond().status for _ in range(10)] == [200] * 10


def test_a_slow_caller_slows_its_upstream_down(gateway: GatewayProcess, upstream: Upstream) -> None:
    """What the caller has not read is not read from the provider either: 40 MB do not fit between the two."""
    delta = response_events(["z" * 20_000])[4]
    sent = [0]
    finished = threading.Event()

    def script(request: Received, wire: Wire) -> None:
        wire.start()
        for _ in range(2000):
            wire.chunk(delta)
            sent[0] += len(delta)
        wire.chunk(response_events(["z"])[-1])
        wire.end()
        finished.set()

    upstream.does(script)
    stream = gateway.stream(timeout=60)
    stream.event()
    assert not finished.wait(2)
    held = sent[0]
    assert held < 30_000_000
    # meanwhile others are served, and when the caller reads on, all of it comes
    upstream.script, before = answer, upstream.script
    assert gateway.respond().status == 200
    upstream.script = before
    assert len(stream.received) + len(stream.rest()) > 2000 * 20_000
    assert gateway.entry(stream)["status"] == 200


def test_a_caller_that_does_not_read_is_no_failure_of_the_upstream(gateway: GatewayProcess, upstream: Upstream) -> None:
    """It is gone, as one that has left, and the target is asked again by the next one."""
    direct = {"display_name": "a", "provider": "openai", "model_name": "a", "provider_key": "up", "retries": 0}
    group = {"display_name": "group", "routing": {"targets": [{"model": "a"}]}}
    gateway.reload(resources(upstream.url, models=[direct | {"stream_timeout": 500}, group]))
    delta = response_events(["z" * 20_000])[4]

    def flood(request: Received, wire: Wire) -> None:
        wire.start()
        while True:
            wire.chunk(delta)

    upstream.does(flood)
    before = len(gateway.rows())
    body = json.dumps({"model": "group", "input": "Hi.", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 60) as caller:
        caller.sendall(head.encode() + body)
        [row] = wait_for(lambda: gateway.rows()[before:], 30)
        received = b""
        while more := caller.recv(1 << 20):
            received = received[-1000:] + more
            if received.endswith(b"0\r\n\r\n"):
                break
    assert (row["status"], row["error"], row["finish"]) == (499, "client_disconnected", "disconnected")
    assert row["attempts"][0]["error"] is None
    assert b'"code":"stream_aborted"' in received  # should it read on after all
    upstream.does(answer)
    assert gateway.post("/v1/responses", {"model": "group", "input": "Hi."}).status == 200


def test_large_bodies_pass_both_ways(gateway: GatewayProcess, upstream: Upstream) -> None:
    text = "A sentence of some length. " * 200_000
    upstream.replies(response_body(text))
    reply = gateway.respond(text)
    assert reply.status == 200
    assert upstream.requests[0].json["input"] == text
    assert reply.json["output"][0]["content"][0]["text"] == text


def test_a_name_with_several_addresses(gateway: GatewayProcess, upstream: Upstream) -> None:
    """`localhost` is ::1 first on many machines, where nobody listens."""
    gateway.reload(resources(f"http://localhost:{upstream.port}"))
    assert [gateway.respond().status for _ in range(3)] == [200] * 3
    gateway.reload(resources("http://no-such-name.invalid"))
    assert gateway.respond().error["type"] == "transport_error"


def test_the_alias_is_restored_in_chat_replies(gateway: GatewayProcess, upstream: Upstream) -> None:
    chat = {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]}
    reply = gateway.post("/v1/chat/completions", chat)
    assert reply.json["model"] == ALIAS
    pieces = chat_events(['say "model":"gpt-4o-mini-2024-07-18" ', "twice"])
    whole = b"".join(pieces)
    upstream.streams([whole[at : at + 50] for at in range(0, len(whole), 50)])
    stream = gateway.stream("/v1/chat/completions")
    chunks = [json.loads(line[6:]) for line in stream.rest().splitlines() if line.startswith(b"data: {")]
    assert {chunk["model"] for chunk in chunks} == {ALIAS}
    assert chunks[1]["choices"][0]["delta"]["content"] == 'say "model":"gpt-4o-mini-2024-07-18" '


@pytest.mark.parametrize("guarded", [False, True])
def test_the_alias_however_the_upstream_spells_it(gateway: GatewayProcess, upstream: Upstream, guarded: bool) -> None:
    """Some begin with an empty name, and some say which model did a part of the work before they say which one did all."""
    if guarded:
        gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nothing-of-this")]))
    pieces = [
        b'data: {"model":"","choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"parts": [{"model":"small"}], "model": "gpt-4o-2024-08-06", "choices": []}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": "Hi."}}], "model":"other"}\n\n',
    ]
    upstream.streams([*pieces, b"data: [DONE]\n\n"])
    body = gateway.stream("/v1/chat/completions").rest()
    named = [b'"model":""', b'"model": "gpt-4o-2024-08-06"', b'"model":"other"']
    for piece, name in zip(pieces, named, strict=True):
        shown = name.split(b'"')[2] + b'"' + ALIAS.encode() + b'"'
        assert piece.replace(name, b'"model"' + shown) in body
    upstream.replies(b'{"x": {"model":"inner"}, "model" : "gpt-x", "choices": []}')
    reply = gateway.post("/v1/chat/completions", {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]})
    assert reply.body == b'{"x": {"model":"inner"}, "model" : "%b", "choices": []}' % ALIAS.encode()


@pytest.mark.parametrize("depth", [20, 900])
def test_nothing_that_is_nested_keeps_tokens_from_being_counted(
    gateway: GatewayProcess, upstream: Upstream, depth: int
) -> None:
    """An upstream that reports no usage, and a body that is nested deeper than Python calls functions."""
    gateway.reload(resources(upstream.url, caller={"rate_limit": {"tpm": 100_000}}))
    upstream.streams(chat_events(["word " * 400]))
    body = (
        b'{"model": "%b", "stream": true, "max_tokens": 5, "text": %b, "messages": [{"role": "user", "content": "%b"}]}'
    )
    deep = b"[" * depth + b'"x"' + b"]" * depth
    reply = gateway.post("/v1/chat/completions", body % (ALIAS.encode(), deep, b"word " * 800))
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    entry = gateway.entry(reply)
    assert (entry["status"], entry["usage_source"]) == (200, "estimated")
    assert (entry["input_tokens"], entry["output_tokens"]) == (1001, 500)

"""Requests that the gateway refuses: keys, models, bodies and limits. They open no connection to a provider, and each
has one entry."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, Stream, resources, sha256
from support.programs import wait_for
from support.scripted_upstream import ReceivedRequest, ScriptedConnection, Upstream, normal_reply, response_events


@pytest.fixture
def no_upstream_request(upstream: Upstream) -> Any:
    """Checks that nothing is sent upstream."""
    before = upstream.connections
    yield
    assert upstream.requests == []
    assert upstream.connections == before


def assert_refused(gateway: GatewayProcess, reply: Any, status: int, type_: str, code: str | None = None) -> None:
    assert (reply.status, reply.error["type"], reply.error["code"]) == (status, type_, code or type_), reply
    assert "server-timing" in reply.headers
    if status in (401, 404):  # these have no entry, see `test_refusals_of_strangers_are_counted_but_not_stored`
        return
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["error"]) == (status, type_)
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (0, 0, "none")
    assert entry["attempts"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer{CALLER}"},
        {"Authorization": f"Basic {CALLER}"},
        {"Authorization": "Bearer sk-unknown"},
        {"X-Api-Key": "sk-unknown"},
        {"Authorization": "Bearer sk-unknown", "X-Api-Key": CALLER},
        {"Authorization": "Bearer sk-\xe9", "X-Api-Key": CALLER},
    ],
)
@pytest.mark.usefixtures("no_upstream_request")
def test_missing_or_unknown_key_is_401_before_the_body_is_parsed(
    gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    """The body is not JSON, but the key is checked first."""
    reply = gateway.post("/v1/responses", b"{not json", key=None, headers=headers)
    assert_refused(gateway, reply, 401, "invalid_api_key")
    assert "sk-" not in reply.error["message"]


def test_key_is_accepted_in_both_headers(gateway: GatewayProcess, upstream: Upstream) -> None:
    assert gateway.respond(key=None, headers={"X-Api-Key": CALLER}).status == 200
    assert gateway.respond(key=None, headers={"Authorization": f"Bearer {CALLER}  "}).status == 200


@pytest.mark.usefixtures("no_upstream_request")
def test_disabled_and_expired_keys_are_401_and_recorded_by_name(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"disabled": True}))
    disabled = gateway.respond()
    assert_refused(gateway, disabled, 401, "invalid_api_key", "api_key_disabled")
    gateway.reload(resources(upstream.url, caller={"expires_at": "2020-01-01T00:00:00Z"}))
    expired = gateway.respond()
    assert_refused(gateway, expired, 401, "invalid_api_key", "api_key_expired")
    wait_for_log(gateway, gateway.respond, " 401 /v1/responses key=caller ")


@pytest.mark.usefixtures("no_upstream_request")
def test_unknown_or_forbidden_models_are_refused(gateway: GatewayProcess, upstream: Upstream) -> None:
    reply = gateway.post("/v1/responses", {"model": "gpt-9", "input": "Hi."})
    assert_refused(gateway, reply, 404, "model_not_found")
    assert "gpt-9" in reply.error["message"]
    strange = {"model": "gpt\n\x1b[31m" + "9" * 5000, "input": "Hi."}
    wait_for_log(gateway, lambda: gateway.post("/v1/responses", strange), f'model="gpt[31m{"9" * 190}…"')
    wait_for(lambda: 'model="unknown",provider="unknown",status="404"' in gateway.metrics())
    assert "gpt-9" not in gateway.metrics()  # callers must not be able to create labels
    other = {"display_name": "other/x", "provider": "openai", "model_name": "x", "provider_key": "up"}
    gateway.reload(resources(upstream.url, caller={"allowed_models": ["other/*"]}, models=[other]))
    refused = gateway.respond()
    assert_refused(gateway, refused, 403, "permission_denied")
    assert ALIAS in refused.error["message"]
    gateway.reload(resources(upstream.url, model={"allowed_cidrs": ["10.0.0.0/8"]}))
    assert_refused(gateway, gateway.respond(), 403, "permission_denied", "ip_restricted")


def wait_for_log(gateway: GatewayProcess, send: Callable[[], object], text: str) -> None:
    """Repeat a request until the log, which contains a sample of the refusals, has a line with the text."""
    wait_for(lambda: send() and text in gateway.log_text())


def test_refusals_of_strangers_are_counted_but_not_stored(gateway: GatewayProcess) -> None:
    """Otherwise anyone could fill the disk: neither needs a valid key or model."""
    for _ in range(40):
        unknown_key = gateway.respond(key="sk-unknown")
        unknown_model = gateway.post("/v1/responses", {"model": "gpt-stranger", "input": "Hi."})
    assert (unknown_key.status, unknown_model.status) == (401, 404)
    served = gateway.respond()
    gateway.ledger_entry(served)
    ids = {row["request_id"] for row in gateway.ledger_rows()}
    assert served.id in ids
    assert not ids & {unknown_key.id, unknown_model.id}
    assert all(row["status"] not in (401, 404) for row in gateway.ledger_rows())

    def unlogged() -> int:
        line = next(
            line
            for line in gateway.metrics().splitlines()
            if line.startswith("penstock_gateway_access_log_unlogged_refusals_total ")
        )
        return int(line.split()[-1])

    wait_for(lambda: unlogged() > 0)


def test_last_untrusted_forwarded_address_is_checked(start: Any, upstream: Upstream) -> None:
    """Behind trusted proxies, the address is the last one in X-Forwarded-For that is not a proxy's."""
    resource_file = resources(upstream.url, model={"allowed_cidrs": ["203.0.113.0/24"]})
    gateway: GatewayProcess = start(resource_file, listen={"trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"]})
    for forwarded, status in (
        ("203.0.113.9", 200),
        ("198.51.100.1, 203.0.113.9, 10.1.2.3", 200),
        ("203.0.113.9, 198.51.100.1", 403),
        ("rubbish", 403),
    ):
        assert gateway.respond(headers={"X-Forwarded-For": forwarded}).status == status
    assert gateway.respond().status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"{}",
        b'{"model":null}',
        b'{"model":7}',
        b'{"model":["gpt-4o-prod"]}',
        b'{"model":"gpt-4o-prod","model":"gpt-4o-prod"}',
        b'{"model":"gpt-4o-prod","mod\\u0065l":"other"}',
        b'{"model":"gpt-4o-prod","input":"\xff"}',
        b'{"model":"gpt-4o-prod"} trailing',
        b"[" * 50_000,
        b"\xef\xbb\xbf" + b'{"model":"gpt-4o-prod"}',
    ],
)
@pytest.mark.usefixtures("no_upstream_request")
def test_invalid_bodies_are_400(gateway: GatewayProcess, body: bytes) -> None:
    assert_refused(gateway, gateway.post("/v1/responses", body), 400, "invalid_request_error")


@pytest.mark.usefixtures("no_upstream_request")
def test_chat_without_messages_is_400(gateway: GatewayProcess) -> None:
    for body in ({"model": ALIAS}, {"model": ALIAS, "messages": []}, {"model": ALIAS, "messages": None}):
        assert gateway.post("/v1/chat/completions", body).status == 400


@pytest.mark.parametrize(
    ("version", "head", "status"),
    [
        ("1.1", "Content-Length: {length}", 400),
        ("1.0", "Content-Length: {length}", 200),
        ("1.1", "Host: x\r\nTransfer-Encoding: gzip, chunked", 501),
        ("1.1", "Host: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 400),
        ("1.1", "Host: x\r\nTransfer-Encoding: Chunked", 200),
    ],
)
def test_head_without_host_or_with_an_unknown_transfer_encoding_is_refused(
    gateway: GatewayProcess, version: str, head: str, status: int
) -> None:
    body = json.dumps({"model": ALIAS, "input": "Hi."}).encode()
    sent = body if "Length" in head else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    start = f"POST /v1/responses HTTP/{version}\r\nAuthorization: Bearer {CALLER}\r\n{head.format(length=len(body))}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(start.encode() + sent)
        assert connection.recv(65536).split()[1] == str(status).encode()


@pytest.mark.parametrize("end", [b"Z\r\n\r\n", b"-0\r\n\r\n", b"\r\n0\r\n\r\n"])
@pytest.mark.parametrize("pause_s", [0, 0.1])
@pytest.mark.usefixtures("no_upstream_request")
def test_broken_chunks_after_a_valid_body_are_400(gateway: GatewayProcess, end: bytes, pause_s: float) -> None:
    body = json.dumps({"model": ALIAS, "input": "Hi."}).encode()
    start = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(start.encode() + b"%x\r\n%b\r\n" % (len(body), body))
        time.sleep(pause_s)
        connection.sendall(end)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("names", [("Authorization", "Authorization"), ("authorization", "AUTHORIZATION")])
@pytest.mark.usefixtures("no_upstream_request")
def test_two_authorization_headers_are_400(gateway: GatewayProcess, names: tuple[str, str]) -> None:
    head = "".join(f"{name}: Bearer {CALLER}\r\n" for name in names)
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(f"POST /v1/responses HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 0\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_caller_that_expects_100_continue_gets_it_before_its_body_is_read(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    body = json.dumps({"model": ALIAS, "input": "Hi."}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CALLER}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_forwarded_address_is_not_trusted_unless_configured(gateway: GatewayProcess, upstream: Upstream) -> None:
    reply = gateway.respond(headers={"X-Forwarded-For": "203.0.113.9"})
    assert gateway.ledger_entry(reply)["client"] == "127.0.0.1"


@pytest.mark.usefixtures("no_upstream_request")
def test_unknown_paths_are_404_and_wrong_methods_405(gateway: GatewayProcess) -> None:
    for method, path, status in (
        ("GET", "/v1/responses", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/responses/resp_1", 404),
        ("POST", "/v1/responses/", 404),
        ("GET", "/", 404),
    ):
        reply = gateway.request(method, path)
        assert (reply.status, reply.id[:4]) == (status, "req_")
        assert reply.error["message"]
        if status == 405:
            assert reply.headers["allow"]


def test_large_bodies_are_413_by_declared_and_by_actual_length(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"max_body_bytes": 20_000})
    before = upstream.connections
    large = {"model": ALIAS, "input": "x" * 30_000}
    reply = gateway.post("/v1/responses", large, key="not checked before the size")
    assert_refused(gateway, reply, 413, "invalid_request_error")
    assert "limit" in reply.error["message"]
    assert "30" not in reply.error["message"]
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    pieces = iter([json.dumps(large).encode()[at : at + 5000] for at in range(0, 30_100, 5000)])
    with contextlib.suppress(BrokenPipeError):  # refused before all of it is sent
        connection.request("POST", "/v1/responses", pieces, {"Authorization": f"Bearer {CALLER}"}, encode_chunked=True)
    chunked = Stream(connection)
    assert chunked.status == 413
    assert gateway.ledger_entry(chunked)["status"] == 413
    assert (upstream.requests, upstream.connections) == ([], before)
    assert gateway.respond("x" * 15_000).status == 200


# -- limits ---------------------------------------------------------------------------------------------------------------


def test_requests_per_minute_are_limited(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "rpm", "rate_limit": {"rpm": 2}}))
    first = gateway.respond()
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    stream = gateway.stream()  # also on streams
    assert stream.headers["x-ratelimit-remaining-requests"] == "0"
    stream.read_rest()
    sent = len(upstream.requests)
    reply = gateway.respond()
    assert_refused(gateway, reply, 429, "rate_limit_exceeded")
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert gateway.ledger_entry(reply)["limited_by"] == "api_key"
    assert len(upstream.requests) == sent


def test_limit_of_a_policy_names_the_policy(gateway: GatewayProcess, upstream: Upstream) -> None:
    policy = {"name": "all", "scope": "model", "scope_ref": ALIAS, "window": "minute", "max_requests": 1}
    gateway.reload(resources(upstream.url, rate_limit_policies=[policy]))
    gateway.respond()
    reply = gateway.respond()
    assert (reply.status, reply.error["policy"]["name"]) == (429, "all")
    assert gateway.ledger_entry(reply)["limited_by"] == "policy"


def test_tokens_are_reserved_and_settled(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The tokens of a stream count, and an excess reservation is returned."""
    gateway.reload(resources(upstream.url, caller={"display_name": "tpm", "rate_limit": {"tpm": 1000}}))
    assert gateway.respond(max_output_tokens=900).status == 200  # uses 40
    stream = gateway.stream(body={"max_output_tokens": 800})
    stream.read_rest()
    assert stream.status == 200
    gateway.ledger_entry(stream)
    upstream.stream_with(response_events(["x"], usage={"input_tokens": 100, "output_tokens": 850}))
    gateway.stream(body={"max_output_tokens": 10}).read_rest()
    reply = wait_for(lambda: (r := gateway.respond(max_output_tokens=10)).status == 429 and r)
    assert reply.error["type"] == "rate_limit_exceeded"
    assert "token" in reply.error["message"]


def test_request_that_never_fits_the_token_limit_is_400(gateway: GatewayProcess, upstream: Upstream) -> None:
    def limit_tokens(name: str) -> None:
        gateway.reload(resources(upstream.url, caller={"display_name": name, "rate_limit": {"tpm": 1000}}))

    limit_tokens("refused")
    for reply in (gateway.respond(max_output_tokens=1001), gateway.respond("word " * 1000, max_output_tokens=1)):
        assert (reply.status, reply.error["code"]) == (400, "token_limit_exceeded")
        assert "retry-after" not in reply.headers
    assert upstream.requests == []
    limit_tokens("with an image")
    assert ask_about_image(gateway, max_output_tokens=1).status == 200
    limit_tokens("without a limit of the reply")
    assert gateway.respond().status == 200


def test_concurrency_slot_is_held_until_the_stream_ends(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "slots", "rate_limit": {"concurrency": 1}}))
    release = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json.get("stream"):
            connection.start()
            for piece in (events := response_events(["a"]))[:4]:
                connection.chunk(piece)
            connection.wait_for(release)
            for piece in events[4:]:
                connection.chunk(piece)
            connection.end()
        else:
            normal_reply(request, connection)

    upstream.use_script(script)
    stream = gateway.stream()
    stream.next_event()
    reply = gateway.respond()
    assert_refused(gateway, reply, 429, "rate_limit_exceeded")
    assert "retry-after" not in reply.headers
    release.set()
    stream.read_rest()
    wait_for(lambda: gateway.respond().status == 200)
    # a disconnect frees the slot, too
    release.clear()
    stream = gateway.stream()
    stream.next_event()
    stream.close()
    release.set()
    wait_for(lambda: gateway.respond().status == 200)


def test_limits_are_exact_across_workers(start: Any, upstream: Upstream) -> None:
    """Two workers together count exactly."""
    resource_file = resources(upstream.url, caller={"rate_limit": {"rpm": 25}})
    gateway: GatewayProcess = start(resource_file, listen={"workers": 2})
    statuses: list[int] = []

    def ask() -> None:
        statuses.extend(gateway.respond().status for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (statuses.count(200), statuses.count(429)) == (25, 35)
    assert len(upstream.requests) == 25
    gateway.stop()
    rows = gateway.ledger_rows()
    assert len(rows) == 60
    assert {row["worker"] for row in rows} == {0, 1}


# -- models ---------------------------------------------------------------------------------------------------------------


def test_models_lists_what_the_key_may_use(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [
        {"display_name": "b/two", "provider": "deepseek", "model_name": "m", "provider_key": "up"},
        {"display_name": "a-group", "routing": {"targets": [{"model": ALIAS}]}},
    ]
    other = {"display_name": "other", "key_hash": sha256("sk-other"), "allowed_models": ["b/*"]}
    gateway.reload(resources(upstream.url, models=models, api_keys=[other]))
    listed = gateway.request("GET", "/v1/models").json
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["a-group", "b/two", ALIAS]
    assert [model["owned_by"] for model in listed["data"]] == ["penstock", "deepseek", "openai"]
    assert {model["object"] for model in listed["data"]} == {"model"}
    assert [model["id"] for model in gateway.request("GET", "/v1/models", key="sk-other").json["data"]] == ["b/two"]
    assert gateway.request("GET", "/v1/models", key=None).status == 401


IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 90_000


def ask_about_image(gateway: GatewayProcess, **more: Any) -> Any:
    content = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": IMAGE}]
    return gateway.post("/v1/responses", {"model": ALIAS, "input": [{"role": "user", "content": content}], **more})


def test_image_reserves_a_fixed_number_of_tokens(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"rate_limit": {"tpm": 10_000}}))
    replies = [ask_about_image(gateway, max_output_tokens=100) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert int(replies[0].headers["x-ratelimit-remaining-tokens"]) > 10_000 - 2000


def test_image_without_reported_usage_is_recorded_with_its_fixed_tokens(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), limits={"image_tokens": 700})
    upstream.reply_with({"id": "r", "status": "completed", "output": []})
    entry = gateway.ledger_entry(ask_about_image(gateway))
    assert entry["usage_source"] == "estimated"
    assert 700 < entry["input_tokens"] < 750


def test_image_is_refused_if_its_fixed_tokens_exceed_what_is_left(start: Any, upstream: Upstream) -> None:
    resource_file = resources(upstream.url, caller={"rate_limit": {"tpm": 5000}})
    gateway: GatewayProcess = start(resource_file, limits={"image_tokens": 4990})
    assert gateway.respond(max_output_tokens=10).status == 200
    assert ask_about_image(gateway, max_output_tokens=10).status == 429

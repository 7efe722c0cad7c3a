"""Requests that end at the gateway: who may ask for what, how much and how often. None of them opens a connection to a
provider, and each leaves one record (RA-18, RA-19, X-12)."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, Stream, resources, sha256
from support.programs import wait_for
from support.scripted_upstream import Received, Upstream, Wire, answer, response_events


@pytest.fixture
def untouched(upstream: Upstream) -> Any:
    """Nothing may be sent upstream in such a test."""
    before = upstream.connections
    yield
    assert upstream.requests == []
    assert upstream.connections == before


def assert_refused(gateway: GatewayProcess, reply: Any, status: int, type_: str, code: str | None = None) -> None:
    assert (reply.status, reply.error["type"], reply.error.get("code")) == (status, type_, code), reply
    assert "server-timing" in reply.headers
    entry = gateway.entry(reply)
    assert (entry["status"], entry["error"]) == (status, type_)
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (0, 0, "none")
    assert entry["attempts"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"bearer {CALLER}"},
        {"Authorization": f"Basic {CALLER}"},
        {"Authorization": "Bearer sk-unknown"},
        {"X-Api-Key": "sk-unknown"},
        {"Authorization": "Bearer sk-unknown", "X-Api-Key": CALLER},
    ],
)
@pytest.mark.usefixtures("untouched")
def test_who_has_no_key(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    """RA-18. A body that is not JSON does not matter before that."""
    reply = gateway.post("/v1/responses", b"{not json", key=None, headers=headers)
    assert_refused(gateway, reply, 401, "invalid_api_key")
    assert "sk-" not in reply.error["message"]


def test_both_places_for_a_key(gateway: GatewayProcess, upstream: Upstream) -> None:
    assert gateway.respond(key=None, headers={"X-Api-Key": CALLER}).status == 200
    assert gateway.respond(key=None, headers={"Authorization": f"Bearer {CALLER}  "}).status == 200


@pytest.mark.usefixtures("untouched")
def test_keys_that_count_no_more(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"disabled": True}))
    disabled = gateway.respond()
    assert_refused(gateway, disabled, 401, "invalid_api_key", "api_key_disabled")
    gateway.reload(resources(upstream.url, caller={"expires_at": "2020-01-01T00:00:00Z"}))
    expired = gateway.respond()
    assert_refused(gateway, expired, 401, "invalid_api_key", "api_key_expired")
    for reply in (disabled, expired):  # whose they were is worth knowing
        assert gateway.entry(reply)["api_key_name"] == "caller"
    wait_for(lambda: gateway.said().count(" 401 /v1/responses key=caller ") == 2, 5)


@pytest.mark.usefixtures("untouched")
def test_models_that_are_not_there_or_not_allowed(gateway: GatewayProcess, upstream: Upstream) -> None:
    """RA-19."""
    reply = gateway.post("/v1/responses", {"model": "gpt-9", "input": "Hi."})
    assert_refused(gateway, reply, 404, "model_not_found")
    assert "gpt-9" in reply.error["message"]
    assert gateway.entry(reply)["model"] == "gpt-9"
    strange = gateway.post("/v1/responses", {"model": "gpt\n\x1b[31m" + "9" * 5000, "input": "Hi."})
    assert gateway.entry(strange)["model"] == "gpt[31m" + "9" * 190 + "…"
    wait_for(lambda: 'model="unknown",provider="unknown",status="404"' in gateway.metrics(), 5)
    assert "gpt-9" not in gateway.metrics()  # anybody could make up any number of labels
    gateway.reload(resources(upstream.url, caller={"allowed_models": ["other/*"]}))
    refused = gateway.respond()
    assert_refused(gateway, refused, 403, "permission_denied")
    assert ALIAS in refused.error["message"]
    gateway.reload(resources(upstream.url, model={"allowed_cidrs": ["10.0.0.0/8"]}))
    assert_refused(gateway, gateway.respond(), 403, "permission_denied", "ip_restricted")


def test_whose_address_counts(start: Any, upstream: Upstream) -> None:
    """Behind proxies that are trusted it is the nearest one that is not theirs."""
    given = resources(upstream.url, model={"allowed_cidrs": ["203.0.113.0/24"]})
    gateway: GatewayProcess = start(given, listen={"trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"]})
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
@pytest.mark.usefixtures("untouched")
def test_bodies_that_are_no_request(gateway: GatewayProcess, body: bytes) -> None:
    assert_refused(gateway, gateway.post("/v1/responses", body), 400, "invalid_request_error")


@pytest.mark.usefixtures("untouched")
def test_chat_without_messages(gateway: GatewayProcess) -> None:
    for body in ({"model": ALIAS}, {"model": ALIAS, "messages": []}, {"model": ALIAS, "messages": None}):
        assert gateway.post("/v1/chat/completions", body).status == 400


@pytest.mark.usefixtures("untouched")
def test_paths_and_methods(gateway: GatewayProcess) -> None:
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


def test_large_bodies_are_refused_by_their_declared_length_and_by_their_real_one(
    start: Any, upstream: Upstream
) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"max_body_bytes": 20_000})
    before = upstream.connections
    large = {"model": ALIAS, "input": "x" * 30_000}
    reply = gateway.post("/v1/responses", large, key="nobody asks for the key first")
    assert_refused(gateway, reply, 413, "invalid_request_error")
    assert "limit" in reply.error["message"]
    assert "30" not in reply.error["message"]
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    pieces = iter([json.dumps(large).encode()[at : at + 5000] for at in range(0, 30_100, 5000)])
    with contextlib.suppress(BrokenPipeError):  # it is refused before all of it is there
        connection.request("POST", "/v1/responses", pieces, {"Authorization": f"Bearer {CALLER}"}, encode_chunked=True)
    chunked = Stream(connection)
    assert chunked.status == 413
    assert gateway.entry(chunked)["status"] == 413
    assert (upstream.requests, upstream.connections) == ([], before)
    assert gateway.respond("x" * 15_000).status == 200


# -- limits ---------------------------------------------------------------------------------------------------------------


def test_requests_a_minute(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "rpm", "rate_limit": {"rpm": 2}}))
    first = gateway.respond()
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    stream = gateway.stream()  # on streams as well
    assert stream.headers["x-ratelimit-remaining-requests"] == "0"
    stream.rest()
    sent = len(upstream.requests)
    reply = gateway.respond()
    assert_refused(gateway, reply, 429, "rate_limit_exceeded")
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert gateway.entry(reply)["limited_by"] == "api_key"
    assert len(upstream.requests) == sent


def test_a_policy_names_itself(gateway: GatewayProcess, upstream: Upstream) -> None:
    policy = {"name": "all", "scope": "model", "scope_ref": ALIAS, "window": "minute", "max_requests": 1}
    gateway.reload(resources(upstream.url, rate_limit_policies=[policy]))
    gateway.respond()
    reply = gateway.respond()
    assert (reply.status, reply.error["policy"]["name"]) == (429, "all")
    assert gateway.entry(reply)["limited_by"] == "policy"


def test_tokens_are_reserved_and_settled(gateway: GatewayProcess, upstream: Upstream) -> None:
    """RC-13: a stream's tokens count, what was reserved too much comes back."""
    gateway.reload(resources(upstream.url, caller={"display_name": "tpm", "rate_limit": {"tpm": 1000}}))
    assert gateway.respond(max_output_tokens=900).status == 200  # 40 were used in the end
    stream = gateway.stream(body={"max_output_tokens": 800})
    stream.rest()
    assert stream.status == 200
    gateway.entry(stream)
    upstream.streams(response_events(["x"], usage={"input_tokens": 100, "output_tokens": 850}))
    gateway.stream(body={"max_output_tokens": 10}).rest()
    reply = wait_for(lambda: (r := gateway.respond(max_output_tokens=10)).status == 429 and r, 5)
    assert reply.error["type"] == "rate_limit_exceeded"
    assert "token" in reply.error["message"]


def test_a_slot_is_held_until_the_stream_has_ended(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, caller={"display_name": "slots", "rate_limit": {"concurrency": 1}}))
    release = threading.Event()

    def script(request: Received, wire: Wire) -> None:
        if request.json.get("stream"):
            wire.start()
            for piece in (events := response_events(["a"]))[:4]:
                wire.chunk(piece)
            release.wait(10)
            for piece in events[4:]:
                wire.chunk(piece)
            wire.end()
        else:
            answer(request, wire)

    upstream.does(script)
    stream = gateway.stream()
    stream.event()
    reply = gateway.respond()
    assert_refused(gateway, reply, 429, "rate_limit_exceeded")
    assert "retry-after" not in reply.headers
    release.set()
    stream.rest()
    wait_for(lambda: gateway.respond().status == 200, 5)
    # a caller that goes away gives its slot back too
    release.clear()
    stream = gateway.stream()
    stream.event()
    stream.close()
    release.set()
    wait_for(lambda: gateway.respond().status == 200, 5)


def test_limits_hold_across_workers(start: Any, upstream: Upstream) -> None:
    """Two workers, exact together."""
    given = resources(upstream.url, caller={"rate_limit": {"rpm": 25}})
    gateway: GatewayProcess = start(given, listen={"workers": 2})
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
    rows = gateway.rows()
    assert len(rows) == 60
    assert {row["worker"] for row in rows} == {0, 1}


# -- models ---------------------------------------------------------------------------------------------------------------


def test_models_are_those_of_the_key(gateway: GatewayProcess, upstream: Upstream) -> None:
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

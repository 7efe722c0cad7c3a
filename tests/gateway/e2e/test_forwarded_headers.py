"""The request ids of both sides, and the headers of the caller that go upstream."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from support.gateway_process import UPSTREAM_SECRET, GatewayProcess, resources, sha256
from support.scripted_upstream import Upstream

TRACE = {"traceparent": f"00-{'a1' * 16}-{'b2' * 8}-01", "tracestate": "vendor=1,other=2"}
MESSAGE = {"model": "gpt-4o-prod", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}


def forwarded(gateway: GatewayProcess, upstream: Upstream, headers: dict[str, str]) -> dict[str, str]:
    assert gateway.respond(headers=headers).status == 200
    return upstream.requests[-1].headers


@pytest.mark.parametrize("stream", [False, True])
def test_upstream_request_id_is_in_the_reply_and_in_the_ledger(
    gateway: GatewayProcess, upstream: Upstream, stream: bool
) -> None:
    if stream:
        upstream.stream_with([b'data: {"type":"response.completed","response":{"id":"r"}}\n\n'], x_request_id="up-1")
    else:
        upstream.reply_with({"id": "r", "status": "completed"}, x_request_id="up-1")
    reply = gateway.respond(stream=stream)
    assert reply.headers["x-upstream-request-id"] == "up-1"
    assert gateway.ledger_entry(reply)["attempts"][0]["upstream_request_id"] == "up-1"
    assert reply.headers["x-request-id"] == reply.id
    assert "request-id" not in reply.headers


def test_ledger_has_the_upstream_request_id_of_each_failed_attempt(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 1}))
    upstream.reply_with({"error": {"message": "no"}}, 500, request_id="up-2")
    attempts = gateway.ledger_entry(gateway.respond())["attempts"]
    assert [attempt["upstream_request_id"] for attempt in attempts] == ["up-2", "up-2"]


def test_refusal_without_an_upstream_has_a_request_id(gateway: GatewayProcess) -> None:
    for reply in (gateway.respond(key="sk-unknown"), gateway.request("GET", "/nowhere")):
        assert reply.headers["x-request-id"] == reply.id


def test_trace_context_is_forwarded(gateway: GatewayProcess, upstream: Upstream) -> None:
    headers = forwarded(gateway, upstream, TRACE)
    assert {name: headers[name] for name in TRACE} == TRACE


@pytest.mark.parametrize("parent", ["", "00-zz-11-01", TRACE["traceparent"] + "-x y", "x" * 5000])
def test_invalid_trace_context_is_not_forwarded(gateway: GatewayProcess, upstream: Upstream, parent: str) -> None:
    headers = forwarded(gateway, upstream, TRACE | {"traceparent": parent})
    assert not headers.keys() & TRACE.keys()


def test_other_headers_of_the_caller_are_not_forwarded(gateway: GatewayProcess, upstream: Upstream) -> None:
    sent = {"OpenAI-Beta": "x", "anthropic-beta": "x", "Cookie": "x", "X-Secret": "x", "OpenAI-Organization": "x"}
    assert not forwarded(gateway, upstream, sent).keys() & {name.lower() for name in sent}


def test_listed_headers_are_forwarded_and_the_operators_values_win(gateway: GatewayProcess, upstream: Upstream) -> None:
    request: dict[str, Any] = {"forward_client_headers": ["OpenAI-Beta", "anthropic-beta"]}
    request["default_headers"] = {"Anthropic-Beta": "operator"}
    gateway.reload(resources(upstream.url, provider_key={"request": request}))
    headers = forwarded(gateway, upstream, {"openai-beta": "assistants=v2", "anthropic-beta": "caller"})
    assert (headers["openai-beta"], headers["anthropic-beta"]) == ("assistants=v2", "operator")
    assert upstream.requests[-1].head.lower().count("anthropic-beta") == 1


@pytest.mark.parametrize(
    ("sent", "received"), [({}, "2023-06-01"), ({"anthropic-version": "2030-01-01"}, "2030-01-01")]
)
def test_listed_api_version_replaces_the_default(
    gateway: GatewayProcess, upstream: Upstream, sent: dict[str, str], received: str
) -> None:
    provider = {"provider": "anthropic", "adapter": "anthropic"}
    request = {"forward_client_headers": ["anthropic-version"]}
    model = {"provider": "anthropic"}
    gateway.reload(resources(upstream.url, provider_key={**provider, "request": request}, model=model))
    upstream.reply_with({"id": "m", "type": "message"})
    assert gateway.post("/v1/messages", MESSAGE, headers=sent).status == 200
    assert upstream.requests[-1].headers["anthropic-version"] == received
    assert upstream.requests[-1].head.lower().count("anthropic-version") == 1


def test_idempotency_key_is_sent_as_a_code_that_callers_cannot_share(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    other = {"display_name": "other", "key_hash": sha256("sk-other"), "allowed_models": ["*"]}
    gateway.reload(resources(upstream.url, api_keys=[other]))
    first, again = (forwarded(gateway, upstream, {"Idempotency-Key": "k-1"})["idempotency-key"] for _ in range(2))
    assert first == again
    key_id = gateway.ledger_entry(gateway.respond())["api_key_id"]
    assert first == hmac.new(UPSTREAM_SECRET.encode(), f"{key_id}\0k-1".encode(), hashlib.sha256).hexdigest()
    assert gateway.respond(key="sk-other", headers={"Idempotency-Key": "k-1"}).status == 200
    assert upstream.requests[-1].headers["idempotency-key"] != first
    assert "idempotency-key" not in forwarded(gateway, upstream, {})

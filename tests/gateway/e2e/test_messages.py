"""Anthropic's Messages API, relayed to the mock server and to scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.mock_process import MockProcess
from support.gateway_process import ALIAS, CALLER, UPSTREAM_SECRET, GatewayProcess, keyword, resources
from support.scripted_upstream import Upstream

PATH = "/v1/messages"
BODY = {"model": ALIAS, "max_tokens": 12, "messages": [{"role": "user", "content": "Say hello."}]}
ANTHROPIC = {
    "provider_key": {"provider": "anthropic", "adapter": "anthropic"},
    "model": {"provider": "anthropic", "model_name": "claude-x"},
}


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    with MockProcess(Behaviour()) as process:
        yield process.url


def anthropic(url: str, **more: Any) -> dict[str, Any]:
    return resources(url, **{name: dict(fields) for name, fields in ANTHROPIC.items()}, **more)


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.partition(b"data: ")[2]) for frame in body.split(b"\n\n") if frame]


def test_message_is_relayed_with_its_usage(gateway: GatewayProcess, mock: str) -> None:
    gateway.reload(anthropic(mock))
    reply = gateway.post(PATH, BODY)
    assert (reply.status, reply.json["type"], reply.json["model"]) == (200, "message", ALIAS)
    entry = gateway.ledger_entry(reply)
    usage = reply.json["usage"]
    assert (entry["route"], entry["finish"], entry["usage_source"]) == ("messages", "max_tokens", "upstream")
    assert (entry["input_tokens"], entry["output_tokens"]) == (usage["input_tokens"], usage["output_tokens"]) != (0, 0)
    assert entry["upstream_id"] == reply.json["id"]


def test_stream_is_relayed_with_its_usage(gateway: GatewayProcess, mock: str) -> None:
    gateway.reload(anthropic(mock))
    stream = gateway.stream(PATH, BODY)
    sent = events(stream.read_rest())
    assert [event["type"] for event in sent if event["type"] != "content_block_delta"] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["finish"]) == (200, None, "max_tokens")
    assert (entry["usage_source"], entry["output_tokens"]) == ("upstream", 12)
    assert entry["input_tokens"] == sent[0]["message"]["usage"]["input_tokens"]


def test_provider_gets_its_own_credential_headers(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(anthropic(upstream.url))
    upstream.reply_with({"id": "msg_1", "type": "message", "content": [], "stop_reason": "end_turn"})
    reply = gateway.post(PATH, BODY, key=None, headers={"x-api-key": CALLER, "anthropic-version": "caller's"})
    assert reply.status == 200
    request = upstream.requests[0]
    assert (request.path, request.headers["x-api-key"]) == (PATH, UPSTREAM_SECRET)
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    assert request.json == {**BODY, "model": "claude-x"}


def test_errors_have_the_shape_of_the_api(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(anthropic(upstream.url))
    for reply in (gateway.post(PATH, BODY, key="sk-wrong"), gateway.post(PATH, {**BODY, "model": "other"})):
        assert reply.json["type"] == "error"
        assert set(reply.error) == {"type", "message"}
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: too large"}}
    upstream.reply_with(error, 400)
    reply = gateway.post(PATH, BODY)
    assert (reply.status, reply.json) == (400, error)
    gateway.reload(resources(upstream.url))
    reply = gateway.post(PATH, BODY)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "`anthropic`" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_output_guardrail_blocks_a_text_that_is_split_into_deltas(
    gateway: GatewayProcess, upstream: Upstream, stream: bool
) -> None:
    gateway.reload(anthropic(upstream.url, guardrails=[keyword("words", "nightjar", hook_point="output")]))
    deltas = [{"type": "text_delta", "text": text} for text in ("Project Night", "jar is late.")]
    start = {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 3, "output_tokens": 1}}}
    payloads = [start, *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas)]
    payloads += [{"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    if stream:
        upstream.stream_with(f"event: {p['type']}\ndata: {json.dumps(p)}\n\n".encode() for p in payloads)
    else:
        upstream.reply_with({"type": "message", "content": [{"type": "text", "text": "Project Nightjar is late."}]})
    reply = gateway.post(PATH, {**BODY, "stream": stream})
    assert (reply.status, reply.json["type"], reply.error["type"]) == (422, "error", "content_filter")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/completions"])
def test_alias_whose_provider_key_has_another_adapter_is_refused_with_400(
    gateway: GatewayProcess, upstream: Upstream, path: str
) -> None:
    gateway.reload(anthropic(upstream.url))
    reply = gateway.post(path, BODY | {"input": "Hi.", "prompt": "Hi."})
    assert (reply.status, reply.error["type"], reply.error["param"]) == (400, "invalid_request_error", "model")
    assert not upstream.requests


def test_reply_has_the_request_id_that_the_client_library_reads(gateway: GatewayProcess, mock: str) -> None:
    gateway.reload(anthropic(mock))
    reply = gateway.post(PATH, BODY)
    assert reply.headers["request-id"] == reply.headers["x-request-id"] == reply.id

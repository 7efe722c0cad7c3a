"""POST /v1/responses: what is relayed, and what is recorded."""

from __future__ import annotations

import json

import pytest

from support.gateway_process import ALIAS, CALLER, UPSTREAM_SECRET, GatewayProcess, resources
from support.scripted_upstream import USAGE, Upstream, response_body, response_events


def test_request_differs_only_in_its_model(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The reply is the upstream's, and the upstream request differs only in its model."""
    sent = b'{\n"model": "gpt-4o-prod",\n"input": "Say hello from AISIX.", "temperature": 1.0, "store" :false\n}'
    reply = gateway.post("/v1/responses", sent)
    assert reply.status == 200
    assert reply.json == response_body("Hello from here.")
    assert reply.headers["content-type"] == "application/json"
    [request] = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert request.body == sent.replace(b"gpt-4o-prod", b"gpt-4o-mini")
    assert request.headers["authorization"] == f"Bearer {UPSTREAM_SECRET}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert CALLER not in request.head


def test_reply_is_relayed_byte_for_byte(gateway: GatewayProcess, upstream: Upstream) -> None:
    body = b'{ "object":"response", "model" : "gpt-4o-mini-2024-07-18",\n "output": [], "x": 1.50, "id":"resp_9"}'
    upstream.reply_with(body)
    assert gateway.respond().body == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"model":"gpt-4o-prod"},"model":"gpt-4o-prod","input":[{"role":"model"}]}',
        b'{"input":"a \\"model\\":\\"gpt-4o-prod\\" b","model":\t"gpt-4o-prod"}',
        b'{"mod\\u0065l":"gpt-4o-prod","input":{"model":"gpt-4o-prod"}}',
        '{"input":"ünïcode 🙂","model":"gpt-4o-prod","big":123456789012345678901234567890}'.encode(),
    ],
)
def test_only_the_top_level_model_is_rewritten(gateway: GatewayProcess, upstream: Upstream, body: bytes) -> None:
    assert gateway.post("/v1/responses", body).status == 200
    expected = json.loads(body) | {"model": "gpt-4o-mini"}
    assert upstream.requests[0].json == expected
    assert len(upstream.requests[0].body) == len(body)  # both names have the same length


def test_stream_is_relayed_byte_for_byte_and_recorded(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The bytes are the upstream's, including [DONE], and there is one entry."""
    pieces = [*response_events(["Hel", "lo"]), b": a comment\n\n", b"data: [DONE]\n\n"]
    upstream.stream_with(pieces, x_request_id="up-77")
    stream = gateway.stream()
    assert stream.read_rest() == b"".join(pieces)
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["x-upstream-request-id"] == "up-77"
    assert "upstream;dur=" in stream.headers["server-timing"]
    entry = gateway.ledger_entry(stream)
    assert (entry["input_tokens"], entry["output_tokens"]) == (17, 23)
    assert (entry["reasoning_tokens"], entry["cached_tokens"]) == (8, 5)
    assert (entry["status"], entry["usage_source"], entry["finish"]) == (200, "upstream", "completed")
    assert (entry["stream"], entry["upstream_id"], entry["events"]) == (1, "resp_1", 11)


@pytest.mark.parametrize("ending", ["incomplete", "failed"])
def test_usage_is_read_from_incomplete_and_failed_events(
    gateway: GatewayProcess, upstream: Upstream, ending: str
) -> None:
    upstream.stream_with(response_events(["Hel"], ending=ending))
    stream = gateway.stream()
    stream.read_rest()
    entry = gateway.ledger_entry(stream)
    assert (entry["finish"], entry["output_tokens"], entry["usage_source"]) == (ending, 23, "upstream")


@pytest.mark.parametrize("pieces", ["bytes", "crlf", "multi-line"])
def test_usage_is_read_however_the_stream_is_split(gateway: GatewayProcess, upstream: Upstream, pieces: str) -> None:
    whole = b"".join(response_events(["Hello", " wörld"]))
    if pieces == "crlf":
        whole = b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n")
    elif pieces == "multi-line":
        whole = whole.replace(b', "sequence_number"', b',\ndata:"sequence_number"')
    size = 7 if pieces == "bytes" else 100
    upstream.stream_with([whole[at : at + size] for at in range(0, len(whole), size)])
    stream = gateway.stream()
    assert stream.read_rest() == whole
    assert gateway.ledger_entry(stream)["output_tokens"] == 23


@pytest.mark.parametrize("provider", ["anthropic", "google", "deepseek"])
def test_other_provider_is_refused_before_anything_is_sent(
    gateway: GatewayProcess, upstream: Upstream, provider: str
) -> None:
    """The provider decides, not the adapter."""
    gateway.reload(resources(upstream.url, model={"provider": provider}))
    before = upstream.connections
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert ALIAS in reply.error["message"]
    assert set(reply.error) == {"message", "type", "code"}
    assert (upstream.requests, upstream.connections) == ([], before)
    assert gateway.ledger_entry(reply)["status"] == 400
    chat = gateway.post("/v1/chat/completions", {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]})
    assert chat.status == 200


def test_provider_is_checked_before_guardrails_and_limits(gateway: GatewayProcess, upstream: Upstream) -> None:
    guard = {"name": "words", "kind": "keyword", "patterns": [{"kind": "literal", "value": "BLOCKME"}]}
    resource_file = resources(
        upstream.url, model={"provider": "deepseek"}, caller={"rate_limit": {"rpm": 1}}, guardrails=[guard]
    )
    gateway.reload(resource_file)
    for _ in range(3):
        assert gateway.respond("BLOCKME").status == 400


def test_success_is_recorded_with_usage_and_attempt(gateway: GatewayProcess, upstream: Upstream) -> None:
    reply = gateway.respond()
    entry = gateway.ledger_entry(reply)
    assert (entry["input_tokens"], entry["output_tokens"]) == (17, 23)
    assert (entry["reasoning_tokens"], entry["cached_tokens"]) == (8, 5)
    assert (entry["status"], entry["error"], entry["route"]) == (200, None, "responses")
    assert (entry["api_key_name"], entry["model"], entry["upstream_model"]) == ("caller", ALIAS, "gpt-4o-mini")
    assert (entry["provider"], entry["upstream_id"], entry["usage_source"]) == ("openai", "resp_1", "upstream")
    [attempt] = entry["attempts"]
    assert (attempt["kind"], attempt["status"], attempt["error"]) == ("initial", 200, None)
    assert entry["phases_ms"]["total"] >= entry["phases_ms"]["upstream"] > 0


@pytest.mark.parametrize("usage", [None, {}, {"output_tokens": 3}])
def test_missing_usage_is_estimated(gateway: GatewayProcess, upstream: Upstream, usage: object) -> None:
    upstream.reply_with(response_body("Four words of text.", usage=usage))
    reply = gateway.respond("A question of some length, so that it has tokens.")
    entry = gateway.ledger_entry(reply)
    assert entry["usage_source"] == "estimated"
    assert 3 <= entry["output_tokens"] <= 8
    assert 8 <= entry["input_tokens"] <= 16


def test_missing_output_tokens_count_as_zero(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with(response_body(usage={"input_tokens": 17}))
    entry = gateway.ledger_entry(gateway.respond())
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (17, 0, "upstream")


def test_upstream_500_is_one_entry_with_one_attempt(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with({"error": {"message": "internal: db-7 is down"}}, 500)
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    assert "500" in reply.error["message"]
    assert b"db-7" not in reply.body
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["input_tokens"], entry["output_tokens"]) == (502, 0, 0)
    [attempt] = entry["attempts"]
    assert (attempt["kind"], attempt["error"], attempt["status"]) == ("initial", "upstream_status", 500)


def test_reply_type_follows_the_upstream_not_the_request(gateway: GatewayProcess, upstream: Upstream) -> None:
    """JSON although a stream was requested, and a stream although none was."""
    upstream.reply_with(response_body("As JSON."))
    stream = gateway.stream()
    assert json.loads(stream.read_rest()) == response_body("As JSON.")
    assert stream.headers["content-type"] == "application/json"
    assert gateway.ledger_entry(stream)["output_tokens"] == USAGE["output_tokens"]
    pieces = response_events(["As events."])
    upstream.stream_with(pieces)
    reply = gateway.respond()
    assert reply.body == b"".join(pieces)
    assert reply.headers["content-type"] == "text/event-stream"
    assert gateway.ledger_entry(reply)["output_tokens"] == USAGE["output_tokens"]


def test_reply_that_is_not_json_is_502(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.reply_with(b"<html>Welcome</html>")
    reply = gateway.respond()
    assert (reply.status, reply.error["type"]) == (502, "upstream_decode_error")
    assert b"html" not in reply.body
    assert gateway.ledger_entry(reply)["attempts"][0]["error"] == "decode"


def test_every_reply_has_request_id_and_server_timing(gateway: GatewayProcess, upstream: Upstream) -> None:
    """For the phases that are known when the head is sent."""
    for reply in (gateway.respond(), gateway.respond(key="wrong"), gateway.post("/v1/responses", b"{")):
        timing = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
        total = float(timing.pop("total"))
        assert sum(map(float, timing.values())) == pytest.approx(total, rel=0.05, abs=0.02)
        assert reply.id.startswith("req_")
        assert "server" not in reply.headers


def test_caller_may_set_the_request_id(gateway: GatewayProcess, upstream: Upstream) -> None:
    for _ in range(2):  # the same id for two requests
        reply = gateway.respond(headers={"x-penstock-request-id": "trace-42"})
        assert reply.id == "trace-42"
        assert upstream.requests[-1].headers["x-penstock-request-id"] == "trace-42"
    from support.programs import wait_for

    wait_for(lambda: len([r for r in gateway.ledger_rows() if r["request_id"].startswith("trace-42~")]) == 2)
    for unusable in ("with space", "x" * 257, "tab\there"):
        assert gateway.respond(headers={"x-penstock-request-id": unusable}).id.startswith("req_")

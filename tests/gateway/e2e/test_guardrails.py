"""Guardrails on requests and replies, end to end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.gateway_process import ALIAS, GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import (
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_body,
    chat_events,
    event,
    normal_reply,
    response_body,
    response_events,
)

WORD = "BLOCKME"


@pytest.fixture
def guarded(gateway: GatewayProcess, upstream: Upstream) -> Callable[..., GatewayProcess]:
    def make(*guardrails: dict[str, Any], **more: Any) -> GatewayProcess:
        gateway.reload(resources(upstream.url, guardrails=list(guardrails) or [keyword("words", WORD)], **more))
        return gateway

    return make


def assert_blocked(reply: Any, side: str, name: str | None = "words") -> None:
    assert reply.status == 422, reply
    assert reply.error["type"] == "content_filter"
    assert side in reply.error["message"]
    assert name is None or f"'{name}'" in reply.error["message"]
    assert WORD.lower() not in reply.body.decode().lower()


# -- requests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"input": f"please {WORD.lower()} now"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": f"x {WORD} y"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": WORD}]},
        {"input": "fine", "instructions": f"always {WORD}"},
        {"input": [{"type": "mcp_approval_response", "approve": False, "reason": WORD}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": f'{{"a":"{WORD}"}}', "call_id": "c"}]},
        {"input": "fine", "tools": [{"type": "function", "name": "f", "description": WORD}]},
        {"input": "fine", "prompt": {"id": "p", "variables": {"x": WORD}}},
    ],
)
def test_request_is_blocked_before_anything_is_sent(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, body: dict[str, Any]
) -> None:
    gateway = guarded()
    before = upstream.connections
    reply = gateway.post("/v1/responses", {"model": ALIAS, **body})
    assert_blocked(reply, "request")
    assert (upstream.requests, upstream.connections) == ([], before)
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["blocked"], entry["error"]) == (422, 1, "content_filter")
    assert entry["guardrails"] == [{"guardrail": "words", "hook": "input", "action": "blocked", "count": 1}]
    assert entry["attempts"] == []


def test_clean_request_passes(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    assert guarded().respond("nothing of the kind").status == 200
    assert len(upstream.requests) == 1


def test_blocked_request_does_not_count_against_limits(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = guarded(caller={"rate_limit": {"rpm": 1}})
    assert gateway.respond(WORD).status == 422
    assert gateway.respond("clean").status == 200
    assert gateway.respond("clean").status == 429


def test_masking_changes_only_the_match_in_a_request(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    pii = {"name": "pii", "kind": "pii", "hook_point": "input", "detectors": [{"type": "email", "action": "mask"}]}
    gateway = guarded(pii)
    reply = gateway.respond("write to ann@example.com", metadata={"a": "b"}, temperature=0.5)
    assert reply.status == 200
    sent = upstream.requests[0].json
    assert "ann@example.com" not in json.dumps(sent)
    assert "[EMAIL_REDACTED]" in sent["input"]
    assert (sent["model"], sent["metadata"], sent["temperature"]) == ("gpt-4o-mini", {"a": "b"}, 0.5)
    [hit] = gateway.ledger_entry(reply)["guardrails"]
    assert (hit["guardrail"], hit["action"]) == ("pii", "masked")


# -- replies --------------------------------------------------------------------------------------------------------------

TOOL_CALL = {"type": "function_call", "name": "f", "call_id": "c", "arguments": f'{{"a": "{WORD}"}}', "id": "fc_1"}
WHERE = {"item_id": "i", "output_index": 0}


def test_blocked_reply_records_the_billed_tokens(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = guarded()
    upstream.reply_with(response_body(f"so {WORD} it is", usage={"input_tokens": 11, "output_tokens": 7}))
    reply = gateway.respond()
    assert_blocked(reply, "response")
    assert len(upstream.requests) == 1
    entry = gateway.ledger_entry(reply)
    assert (entry["status"], entry["blocked"]) == (422, 1)
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (11, 7, "upstream")


def test_clean_reply_passes_unchanged(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    body = json.dumps(response_body("all is well"), indent=3).encode()
    upstream.reply_with(body)
    assert guarded().respond().body == body


def test_tool_arguments_of_a_reply_are_inspected(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    upstream.reply_with(response_body(output=[TOOL_CALL]))
    assert_blocked(guarded().respond(), "response")


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(response_events(["so ", WORD, " it is"]), id="whole"),
        pytest.param(response_events(["so BLO", "CKME it is"]), id="split"),
        pytest.param(
            [event("response.completed", 1, response={**response_body(output=[TOOL_CALL])})], id="terminal only"
        ),
        pytest.param([event("response.incomplete", 1, response=response_body(output=[TOOL_CALL]))], id="incomplete"),
        pytest.param(
            [
                event("response.function_call_arguments.delta", n, **WHERE, delta=d)
                for n, d in enumerate(["BLO", "CKME"])
            ],
            id="arguments",
        ),
        pytest.param(
            [event("response.mcp_call_arguments.delta", n, **WHERE, delta=d) for n, d in enumerate(["BLOCK", "ME"])],
            id="mcp arguments",
        ),
        pytest.param([event("response.refusal.delta", 0, **WHERE, content_index=0, delta=WORD)], id="refusal"),
        pytest.param(
            [event("response.reasoning_summary_text.delta", 0, **WHERE, summary_index=0, delta=WORD)],
            id="reasoning",
        ),
        pytest.param([event("response.function_call_arguments.done", 0, **WHERE, arguments=WORD)], id="done only"),
    ],
)
@pytest.mark.parametrize("size", [None, 5])
def test_buffered_stream_is_blocked_before_anything_is_sent(
    guarded: Callable[..., GatewayProcess], upstream: Upstream, pieces: list[bytes], size: int | None
) -> None:
    gateway = guarded()
    whole = b"".join(pieces)
    upstream.stream_with(pieces if size is None else [whole[at : at + size] for at in range(0, len(whole), size)])
    reply = gateway.respond(stream=True)
    assert_blocked(reply, "response")
    assert b"BLO" not in reply.body
    assert reply.headers["content-type"] == "application/json"
    assert gateway.ledger_entry(reply)["blocked"] == 1


def test_tokens_of_a_blocked_stream_are_recorded_and_limited(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    """The usage of the terminal event also counts against the token limit."""
    gateway = guarded(caller={"rate_limit": {"tpm": 100}})
    upstream.stream_with(response_events([WORD]))
    body = {"stream": True, "max_output_tokens": 10}
    reply = gateway.respond(**body)
    assert_blocked(reply, "response")
    entry = gateway.ledger_entry(reply)
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (17, 23, "upstream")
    upstream.use_script(normal_reply)
    clean = gateway.respond(max_output_tokens=10)
    assert clean.status == 200
    left = int(clean.headers["x-ratelimit-remaining-tokens"])
    assert left <= 100 - 40 - 10


def test_clean_buffered_stream_is_sent_unchanged(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    pieces = response_events(["all ", "is ", "well"])
    upstream.stream_with(pieces, pause_s=0.01)
    stream = guarded().stream()
    assert stream.read_rest() == b"".join(pieces)
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")


def test_stream_above_the_buffer_limit_is_422(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    upstream.stream_with(response_events(["y" * 300_000]))
    gateway = guarded()
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"], reply.error["code"]) == (422, "content_filter", "stream_too_long")
    assert b"yyy" not in reply.body
    assert "guardrail '" not in reply.error["message"]
    log = gateway.log_text()
    assert "guardrail 'words'" in log
    assert "guardrails.max_buffer_bytes: 262144" in log
    assert "stream_mode: window" in log


def test_long_reply_in_short_deltas_is_within_the_buffer_limit(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    """Only text counts, not the 240 bytes of JSON around each token."""
    pieces = response_events(["word "] * 2000)
    assert sum(map(len, pieces)) > 262144
    upstream.stream_with([b"".join(pieces)])
    assert guarded().stream().read_rest() == b"".join(pieces)


def test_monitoring_relays_everything_and_records_hits(
    guarded: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = guarded(keyword("watch", WORD, enforcement_mode="monitor"))
    pieces = response_events([f"{WORD} ", "y" * 300_000])
    upstream.stream_with(pieces)
    stream = gateway.stream()
    assert stream.read_rest() == b"".join(pieces)
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["blocked"]) == (200, 0)
    [hit] = entry["guardrails"]
    assert (hit["guardrail"], hit["hook"], hit["action"]) == ("watch", "output", "would_block")


def test_masks_are_applied_to_replies_and_streams(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    pii = {"name": "pii", "kind": "pii", "hook_point": "output", "detectors": [{"type": "email", "action": "mask"}]}
    gateway = guarded(pii)
    upstream.reply_with(response_body("ask bob@example.com about it"))
    assert "bob@example.com" not in gateway.respond().body.decode()
    upstream.stream_with(response_events(["ask bob@exa", "mple.com about it"]))
    stream = gateway.stream()
    text = stream.read_rest().decode()
    assert "mple.com" not in text
    assert "[EMAIL_REDACTED]" in text
    assert gateway.ledger_entry(stream)["guardrails"][0]["action"] == "masked"


def test_chat_route_is_inspected(guarded: Callable[..., GatewayProcess], upstream: Upstream) -> None:
    gateway = guarded()
    chat = {"model": ALIAS, "messages": [{"role": "user", "content": "Hi."}]}
    blocked = {"model": ALIAS, "messages": [{"role": "user", "content": [{"type": "text", "text": WORD}]}]}
    assert_blocked(gateway.post("/v1/chat/completions", blocked), "request")
    upstream.reply_with(chat_body(WORD))
    assert_blocked(gateway.post("/v1/chat/completions", chat), "response")
    upstream.stream_with(chat_events(["BLOCK", "ME"]))
    assert_blocked(gateway.post("/v1/chat/completions", {**chat, "stream": True}), "response")


# -- window mode ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def windowed(server: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        tmp_path_factory.mktemp("window"),
        resources(server.url, guardrails=[keyword("words", WORD)]),
        guardrails={"stream_mode": "window", "heartbeat_s": 0.5},
    )
    yield process
    assert "internal error" not in process.log_text()
    process.stop()


def test_window_sends_first_text_before_the_last_arrives(windowed: GatewayProcess, upstream: Upstream) -> None:
    """A stream of any length passes in bounded memory."""
    first, rest = response_events(["It is all quite well with us here. "])[:5], response_events(["y" * 1000] * 3000)[5:]

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for piece in first:
            connection.chunk(piece)
        assert seen.wait(60)
        for piece in rest:
            connection.chunk(piece)
        connection.end()

    seen = threading.Event()
    upstream.use_script(script)
    stream = windowed.stream()
    assert stream.status == 200
    assert stream.next_event().startswith(b"event: response.created")
    seen.set()
    received = stream.received + stream.read_rest()
    assert received == b"".join([*first, *rest])
    assert windowed.ledger_entry(stream)["usage_source"] == "upstream"


@pytest.mark.parametrize(("text", "blocked"), [("Well. ", False), (f"{WORD}. ", True)])
def test_window_sends_heartbeats_while_the_model_thinks(
    windowed: GatewayProcess, upstream: Upstream, text: str, blocked: bool
) -> None:
    pieces = response_events([text])
    seen = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        connection.chunk(pieces[0])
        assert seen.wait(60)
        for piece in pieces[1:]:
            connection.chunk(piece)
        connection.end()

    upstream.use_script(script)
    stream = windowed.stream()
    assert stream.status == 200
    assert stream.next_event() == pieces[0]
    assert stream.next_event() == b": keep-alive\n\n"
    seen.set()
    rest = stream.read_rest()
    assert (b"response.completed" in rest) != blocked
    assert (b"event: response.failed" in rest) == blocked
    assert WORD.encode() not in rest


def test_window_block_before_the_first_text_is_422(windowed: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with(response_events(["BLOCK", "ME, they said"]))
    reply = windowed.respond(stream=True)
    assert_blocked(reply, "response")
    assert (windowed.ledger_entry(reply)["output_tokens"], windowed.ledger_entry(reply)["usage_source"]) == (
        23,
        "upstream",
    )


def test_window_late_block_is_an_event(windowed: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with(
        response_events(["This is a long and clean beginning of it. ", "And then BLO", "CKME."]), pause_s=0.02
    )
    stream = windowed.stream()
    text = stream.read_rest().decode()
    assert stream.status == 200
    assert "long and clean" in text
    assert "BLO" not in text
    last = text.strip().rsplit("\n\n", 1)[-1]
    assert last.startswith("event: response.failed\n")
    failed = json.loads(last.partition("data: ")[2])
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "content_filter"
    assert "'words'" in failed["response"]["error"]["message"]
    assert failed["sequence_number"] > 0
    entry = windowed.ledger_entry(stream)
    assert (entry["status"], entry["blocked"], entry["error"]) == (422, 1, "content_filter")
    assert (entry["output_tokens"], entry["usage_source"]) == (23, "upstream")


@pytest.mark.slow
def test_window_block_reserves_usage_if_the_upstream_does_not_end(windowed: GatewayProcess, upstream: Upstream) -> None:
    """Usage is estimated if the upstream reports none in time; the caller does not wait for it."""
    closed = []

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for piece in response_events(["This is a long and clean beginning of it. ", f"Then {WORD}."])[:6]:
            connection.chunk(piece)
            time.sleep(0.02)
        closed.append(connection.closed_within())

    upstream.use_script(script)
    stream = windowed.stream()
    assert b"response.failed" in stream.read_rest()
    assert closed == []  # the gateway still waits for usage
    entry = windowed.ledger_entry(stream)
    assert (entry["usage_source"], entry["blocked"]) == ("reserved", 1)
    assert entry["output_tokens"] > 5
    wait_for(lambda: closed == [True])


def test_window_late_block_of_a_chat_is_an_error_event(windowed: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with(chat_events(["This is a long and clean beginning. ", WORD, " more"]), pause_s=0.02)
    stream = windowed.stream("/v1/chat/completions")
    text = stream.read_rest().decode()
    assert "clean beginning" in text
    assert "BLO" not in text
    assert "[DONE]" not in text
    assert json.loads(text.strip().rsplit("data: ", 1)[-1])["error"]["type"] == "content_filter"

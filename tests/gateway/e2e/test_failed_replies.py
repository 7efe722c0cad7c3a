"""Replies with status 200 that report a failure: they are relayed unchanged, and count as errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gateway_process import ALIAS, GatewayProcess, keyword, resources
from support.programs import Program, wait_for
from support.scripted_upstream import Upstream, chat_body, chat_events, event, response_body, response_events

ERROR = {"message": "The model is overloaded.", "type": "server_error", "code": "overloaded"}
BARE = b"data: %b\n\n" % json.dumps({"error": ERROR}).encode()
RESPONSE = response_events(["Hel"], ending=None)
STREAMS = {
    "response.failed": ("/v1/responses", response_events(["Hel"], ending="failed"), "failed"),
    "error event": ("/v1/responses", [*RESPONSE, event("error", 9, code="overloaded", message="Later.")], "error"),
    "bare error": ("/v1/responses", [*RESPONSE, BARE], "error"),
    "chat error": ("/v1/chat/completions", [*chat_events(["Hel"], done=False)[:2], BARE], "error"),
}
BODIES = {
    "failed response": ("/v1/responses", {**response_body(), "status": "failed", "error": ERROR}, "failed"),
    "error alone": ("/v1/chat/completions", {"error": ERROR}, "error"),
}


def body_for(path: str) -> dict[str, Any]:
    content = {"input": "Hi."} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi."}]}
    return {"model": ALIAS, **content}


def check(gateway: GatewayProcess, entry: dict[str, Any], finish: str) -> None:
    assert (entry["status"], entry["error"], entry["finish"]) == (200, "upstream_failed", finish)
    assert [(attempt["status"], attempt["error"]) for attempt in entry["attempts"]] == [(200, "upstream_failed")]
    wait_for(
        lambda: (
            f'upstream_attempts_total{{model="{ALIAS}",kind="initial",outcome="upstream_failed"}}' in gateway.metrics()
        ),
        10,
        "the attempt in the metrics",
    )


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("guarded", [False, True])
def test_stream_ending_in_failure_is_relayed_and_recorded_as_error(
    gateway: GatewayProcess, upstream: Upstream, name: str, guarded: bool
) -> None:
    path, pieces, finish = STREAMS[name]
    if guarded:
        gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nightjar")]))
    upstream.stream_with(pieces)
    stream = gateway.stream(path)
    assert stream.status == 200
    assert (b"overloaded" in stream.read_rest()) == (name != "response.failed")
    check(gateway, gateway.ledger_entry(stream), finish)


@pytest.mark.parametrize("name", BODIES)
def test_reply_reporting_failure_is_relayed_and_recorded_as_error(
    gateway: GatewayProcess, upstream: Upstream, name: str
) -> None:
    path, body, finish = BODIES[name]
    upstream.reply_with(body)
    reply = gateway.post(path, body_for(path))
    assert (reply.status, reply.json) == (200, body)
    check(gateway, gateway.ledger_entry(reply), finish)


def test_failed_replies_count_as_errors_in_usage_and_log(start: Any, upstream: Upstream, program: Program) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), access_log="text")
    upstream.stream_with(response_events(["Hel"], ending="failed"))
    failed = gateway.stream()
    failed.read_rest()
    upstream.stream_with(response_events(["Hel"], ending="incomplete"))
    stream = gateway.stream()
    stream.read_rest()
    upstream.reply_with({**response_body(), "status": "incomplete"})
    replies = [gateway.respond()]
    upstream.reply_with({**chat_body(), "error": None})
    replies.append(gateway.post("/v1/chat/completions", body_for("/v1/chat/completions")))
    gateway.ledger_entry(failed)
    for succeeded in (stream, *replies):
        assert gateway.ledger_entry(succeeded)["error"] is None
    arguments = ("usage", "--ledger", f"sqlite:///{gateway.ledger}", "--by", "none", "--json")
    total = json.loads(program.run(*arguments, command="penstock").out)["total"]
    assert (total["requests"], total["errors"]) == (4, 1)
    lines = wait_for(lambda: [line for line in gateway.log_text().splitlines() if failed.id in line])
    assert " 200 /v1/responses " in lines[0]
    assert " error=upstream_failed " in lines[0]


def lost_last_event(route: str) -> list[bytes]:
    return response_events(["Hel"], ending=None) if route == "/v1/responses" else chat_events(["Hel"], done=False)


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/chat/completions"])
def test_stream_without_its_last_event_is_a_failure(gateway: GatewayProcess, upstream: Upstream, route: str) -> None:
    upstream.stream_with(lost_last_event(route))
    stream = gateway.stream(route)
    last = json.loads(stream.read_rest().rsplit(b"data: ", 1)[-1])
    assert (last.get("code") or last["error"]["type"]) == "stream_aborted"
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["finish"]) == (502, "stream_aborted", "cut")
    assert entry["attempts"][0]["error"] == "aborted"


def test_buffered_stream_without_its_last_event_is_502(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "nightjar", hook_point="output")]))
    upstream.stream_with(lost_last_event("/v1/responses"))
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (502, "stream_aborted")


@pytest.mark.parametrize("marker", ["optional", "none"])
def test_chat_stream_may_lack_done_if_the_provider_key_says_so(
    gateway: GatewayProcess, upstream: Upstream, marker: str
) -> None:
    gateway.reload(resources(upstream.url, provider_key={"response": {"stream_done_marker": marker}}))
    upstream.stream_with(lost_last_event("/v1/chat/completions"))
    stream = gateway.stream("/v1/chat/completions")
    assert b'"error"' not in stream.read_rest()
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["finish"]) == (200, None, "stop")

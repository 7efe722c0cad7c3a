"""Responses that refer to earlier ones: only their own caller may do so, and at the account that has them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, keyword, resources, sha256
from support.programs import wait_for
from support.scripted_upstream import ReceivedRequest, ScriptedConnection, Upstream, response_body, response_events

OTHER = "sk-other-0123456789abcdef"
OTHER_CALLER = {"display_name": "other", "key_hash": sha256(OTHER), "allowed_models": ["*"]}


def numbered_replies(prefix: str) -> Any:
    """Return a script that gives every response another id."""
    numbers = itertools.count()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        new = f"resp_{prefix}_{next(numbers)}"
        if request.json.get("stream"):
            connection.stream(
                [piece.replace(b"resp_1", new.encode()) for piece in response_events(["BLOCK", "ME not."])]
            )
        else:
            connection.reply(200, {**response_body("BLOCKME not."), "id": new})

    return script


def make_response(gateway: GatewayProcess, stream: bool) -> str:
    if not stream:
        return str(gateway.respond().json["id"])
    events = gateway.stream()
    first = json.loads(events.next_event().partition(b"data: ")[2])
    events.read_rest()
    return str(first["response"]["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_caller_of_a_response_can_continue_it(
    gateway: GatewayProcess, upstream: Upstream, stream: bool
) -> None:
    gateway.reload(resources(upstream.url, api_keys=[OTHER_CALLER]))
    upstream.use_script(numbered_replies(f"owner{stream}"))
    made = make_response(gateway, stream)
    assert gateway.respond(previous_response_id=made, stream=stream).status == 200
    before = len(upstream.requests)
    foreign = gateway.respond(previous_response_id=made, key=OTHER)
    unknown = gateway.respond(previous_response_id="resp_never_made", key=OTHER)
    assert (foreign.status, foreign.error) == (unknown.status, unknown.error)
    assert (foreign.status, foreign.error["code"]) == (404, "previous_response_id_not_found")
    for conversation in ("conv_1", {"id": "conv_1"}):
        assert gateway.respond(conversation=conversation).status == 404
    assert len(upstream.requests) == before
    assert gateway.ledger_entry(foreign)["status"] == 404


def test_response_is_continued_at_the_account_that_has_it(gateway: GatewayProcess, upstream: Upstream) -> None:
    second = Upstream()
    base = {"provider": "openai", "retries": 0}
    gateway.reload(
        resources(
            upstream.url,
            provider_keys=[
                {
                    "display_name": "two",
                    "provider": "openai",
                    "adapter": "openai",
                    "api_key": "k",
                    "api_base": second.url,
                }
            ],
            models=[
                {**base, "display_name": "a", "model_name": "a", "provider_key": "up"},
                {**base, "display_name": "b", "model_name": "b", "provider_key": "two"},
                {
                    "display_name": "group",
                    "routing": {"strategy": "round_robin", "targets": [{"model": "a"}, {"model": "b"}]},
                },
            ],
        )
    )
    upstream.use_script(numbered_replies("first"))
    second.use_script(numbered_replies("second"))
    made = [gateway.respond(model="group").json["id"] for _ in range(2)]
    for response_id in made * 3:
        reply = gateway.respond(model="group", previous_response_id=response_id)
        assert reply.json["id"].rpartition("_")[0] == response_id.rpartition("_")[0]
    # the direct model of the other account cannot continue it
    first = next(response_id for response_id in made if "first" in response_id)
    assert gateway.respond(model="b", previous_response_id=first).status == 404
    second.stop()


def test_blocked_response_cannot_be_continued(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "BLOCKME", hook_point="output")]))
    upstream.use_script(numbered_replies("blocked"))
    assert [gateway.respond(stream=stream).status for stream in (False, True)] == [422, 422]
    gateway.reload(resources(upstream.url))
    assert [gateway.respond(previous_response_id=f"resp_blocked_{n}").status for n in range(2)] == [404, 404]


def test_ids_survive_the_death_of_a_worker_and_unknown_ones_can_be_allowed(
    start: Callable[..., GatewayProcess], upstream: Upstream
) -> None:
    gateway = start(resources(upstream.url, api_keys=[OTHER_CALLER]), responses={"foreign_ids": "allow"})
    upstream.use_script(numbered_replies("killed"))
    made = make_response(gateway, True)
    pid = gateway.config()["workers"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gateway.config()["workers"][0]["pid"] not in (0, pid), what="the new worker")
    wait_for(lambda: gateway.status("/readyz").status == 200)
    assert gateway.respond(previous_response_id=made).status == 200
    assert gateway.respond(previous_response_id=made, key=OTHER).status == 404
    assert gateway.respond(previous_response_id="resp_elsewhere", key=OTHER).status == 200
    assert (
        gateway.post("/v1/responses", {"model": ALIAS, "input": "x", "conversation": "conv_1"}, key=CALLER).status
        == 200
    )


def test_own_response_is_continued_while_the_database_of_ids_does_not_answer(start: Any, upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, but never answers
        url = f"postgresql://penstock:s3cret@127.0.0.1:{silent.getsockname()[1]}/ids"
        gateway: GatewayProcess = start(resources(upstream.url), responses={"id_url": url})
        upstream.use_script(numbered_replies("silent"))
        made = make_response(gateway, False)
        with ThreadPoolExecutor(4) as callers:
            unknown = [
                callers.submit(gateway.respond, previous_response_id=f"resp_unknown_{number % 2}")
                for number in range(4)
            ]
            for _ in range(3):
                assert gateway.respond(previous_response_id=made).status == 200
            replies = [call.result() for call in unknown]
        assert [(reply.status, reply.error["type"]) for reply in replies] == [(503, "storage_unavailable")] * 4
        assert gateway.log_text().count("response ids cannot be looked up") == 1

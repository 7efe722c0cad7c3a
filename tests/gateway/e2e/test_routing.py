"""Retries, failover, round robin and cooldown, end to end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import (
    CHAT_USAGE,
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_events,
    normal_reply,
    response_events,
)


def direct(name: str, key: str = "up", **more: Any) -> dict[str, Any]:
    base = {
        "display_name": name,
        "provider": "openai",
        "model_name": f"{name}-upstream",
        "provider_key": key,
        "retries": 0,
    }
    return base | more


def group(*targets: str, name: str = "group", **routing: Any) -> dict[str, Any]:
    return {"display_name": name, "routing": {"targets": [{"model": target} for target in targets], **routing}}


def provider(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"display_name": name, "provider": "openai", "adapter": "openai", "api_key": "sk-x", "api_base": url, **more}


def send_request(gateway: GatewayProcess, model: str = "group", **more: Any) -> Any:
    return gateway.post("/v1/responses", {"model": model, "input": "Hi.", **more})


def flaky(failures: int, status: int = 500, **headers: str) -> Any:
    count = iter(range(1000))

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if next(count) < failures:
            connection.reply(status, {"error": {"message": "no"}}, **headers)
        else:
            normal_reply(request, connection)

    return script


@pytest.mark.parametrize("stream", [False, True])
def test_failed_attempt_is_retried(gateway: GatewayProcess, upstream: Upstream, stream: bool) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 2}))
    upstream.use_script(flaky(1))
    reply = gateway.respond(stream=stream)
    assert reply.status == 200
    entry = gateway.ledger_entry(reply)
    assert [attempt["kind"] for attempt in entry["attempts"]] == ["initial", "retry"]
    assert [attempt["error"] for attempt in entry["attempts"]] == ["upstream_status", None]
    assert entry["attempts"][1]["started_ms"] - entry["attempts"][0]["ended_ms"] >= 240


def test_retry_waits_for_a_short_retry_after(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 1}))
    upstream.use_script(flaky(1, 503, retry_after="1"))
    entry = gateway.ledger_entry(gateway.respond())
    assert entry["attempts"][1]["started_ms"] - entry["attempts"][0]["ended_ms"] >= 990


def test_client_errors_are_not_retried(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 3}))
    upstream.use_script(flaky(1, 429))
    assert gateway.respond().status == 429
    assert len(upstream.requests) == 1


def test_failover_uses_the_next_target_and_cools_down_the_failed_one(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    other = Upstream()
    resource_file = resources(
        upstream.url,
        provider_keys=[provider("two", other.url)],
        models=[direct("a"), direct("b", "two"), group("a", "b"), group("a", name="only-a")],
    )
    gateway.reload(resource_file)
    upstream.reply_with({}, 500)
    reply = send_request(gateway)
    assert reply.status == 200
    assert reply.headers["x-penstock-served-by"] == "b"
    assert other.requests[0].json["model"] == "b-upstream"
    entry = gateway.ledger_entry(reply)
    assert (entry["model"], entry["upstream_model"]) == ("group", "b-upstream")
    kinds = [(attempt["model"], attempt["kind"]) for attempt in entry["attempts"]]
    assert kinds == [("a", "initial"), ("b", "fallback")]
    # after three failures the first target is cooling down, so the second is tried first
    for _ in range(2):
        assert send_request(gateway).status == 200
    assert [attempt["model"] for attempt in gateway.ledger_entry(send_request(gateway))["attempts"]] == ["b"]
    # an earlier value of the gauge is 0: workers write their metrics once a second
    gauge = r'upstream_cooldown_seconds{model="a"} ([1-9]\d*)'
    cooldown_s = wait_for(lambda: re.search(gauge, gateway.metrics()))[1]
    assert int(cooldown_s) <= 30
    # the last healthy target is used whether it fails, asks for a pause or not
    for headers in ({}, {"retry_after": "20"}):
        other.reply_with({}, 503, **headers)
        for _ in range(4):
            reply = send_request(gateway)
            assert reply.status == 502
        assert [attempt["model"] for attempt in gateway.ledger_entry(reply)["attempts"]] == ["b", "a"]
    # another group, all of whose targets are in their cooldown, refuses a request without an attempt
    refused = send_request(gateway, "only-a")
    assert (refused.status, refused.error["type"]) == (503, "all_candidates_unavailable")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    # a direct alias ignores the cooldown
    upstream.use_script(normal_reply)
    assert send_request(gateway, "a").status == 200
    other.stop()


def test_stream_fails_over_before_its_first_byte(gateway: GatewayProcess, upstream: Upstream) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json["model"] == "c-upstream":
            connection.start()
            connection.reset()
        else:
            normal_reply(request, connection)

    gateway.reload(resources(upstream.url, models=[direct("c"), direct("d"), group("c", "d")]))
    upstream.use_script(script)
    stream = gateway.stream(body={"model": "group"})
    assert stream.status == 200
    assert b"response.completed" in stream.read_rest()
    assert [attempt["error"] for attempt in gateway.ledger_entry(stream)["attempts"]] == ["transport", None]


def test_target_that_aborts_a_stream_is_cooled_down(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The caller got part of the stream, so it is not retried; the next request uses another target."""

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json["model"] == "m-upstream":
            connection.start()
            connection.chunk(response_events()[0])
            wait_for(lambda: len(streams) == len(upstream.requests))
            connection.reset()
        else:
            normal_reply(request, connection)

    quick = {"cooldown": {"min_failures": 1}}
    gateway.reload(resources(upstream.url, models=[direct("m", **quick), direct("n"), group("m", "n")]))
    upstream.use_script(script)
    streams: list[Any] = []
    for _ in range(3):
        streams.append(gateway.stream(body={"model": "group"}))
        streams[-1].read_rest()
    assert [request.json["model"] for request in upstream.requests] == ["m-upstream", "n-upstream", "n-upstream"]
    entries = [gateway.ledger_entry(stream) for stream in streams]
    assert [(entry["status"], entry["error"]) for entry in entries] == [
        (502, "stream_aborted"),
        (200, None),
        (200, None),
    ]


def test_tokens_of_a_lost_stream_are_counted(gateway: GatewayProcess, upstream: Upstream) -> None:
    """A guardrail held the stream back when it was lost. Its tokens count against the limits of caller and target."""

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json["model"] == "o-upstream":
            connection.start()
            for piece in chat_events(["Hello"], usage=CHAT_USAGE, done=False):
                connection.chunk(piece)
            connection.reset()
        else:
            connection.stream(chat_events(["Hello"], usage=CHAT_USAGE))

    first = direct("o", rate_limit={"tpm": 70}, cooldown={"enabled": False})
    models = [first, direct("p"), group("o", "p")]
    gateway.reload(resources(upstream.url, models=models, guardrails=[keyword("words", "nothing-of-this")]))
    upstream.use_script(script)
    attempts = []
    for _ in range(2):
        stream = gateway.stream("/v1/chat/completions", {"model": "group", "max_tokens": 10})
        assert b"[DONE]" in stream.read_rest()
        entry = gateway.ledger_entry(stream)
        attempts.append([(attempt["model"], attempt["error"]) for attempt in entry["attempts"]])
        assert entry["usage_source"] == "upstream"
        tokens = (17, 23) if len(attempts) == 2 else (34, 46)
        assert (entry["input_tokens"], entry["output_tokens"]) == tokens
    assert attempts == [[("o", "transport"), ("p", None)], [("o", "over_limit"), ("p", None)]]


@pytest.mark.parametrize("routing", [{"retry_on_429": True}, {"fallback_on_statuses": [429]}])
def test_429_falls_back_only_if_the_group_allows_it(
    gateway: GatewayProcess, upstream: Upstream, routing: dict[str, Any]
) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json["model"].startswith("busy"):
            connection.reply(429, {"error": {"message": "busy", "code": "rate_limit_exceeded"}}, retry_after="1")
        else:
            normal_reply(request, connection)

    quick = {"cooldown": {"enabled": False}}
    models = [direct("busy", **quick), direct("free", **quick)]
    gateway.reload(resources(upstream.url, models=[*models, group("busy", "free")]))
    upstream.use_script(script)
    assert send_request(gateway).status == 429
    gateway.reload(resources(upstream.url, models=[*models, group("busy", "free", **routing)]))
    assert send_request(gateway).status == 200


def test_round_robin_alternates_targets(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("e"), direct("f"), group("e", "f", strategy="round_robin")]
    gateway.reload(resources(upstream.url, models=models))
    for _ in range(4):
        assert send_request(gateway).status == 200
    assert [request.json["model"] for request in upstream.requests].count("e-upstream") == 2


def test_group_serves_responses_only_with_openai_targets(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("g", provider="deepseek"), direct("h"), group("g", "h")]
    gateway.reload(resources(upstream.url, models=models))
    assert send_request(gateway).status == 200
    assert upstream.requests[0].json["model"] == "h-upstream"
    gateway.reload(resources(upstream.url, models=[direct("g", provider="deepseek"), group("g")]))
    assert send_request(gateway).status == 400


def test_target_over_its_own_limit_is_skipped(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("i", rate_limit={"rpm": 1}), direct("j"), group("i", "j")]
    gateway.reload(resources(upstream.url, models=models))
    assert [send_request(gateway).headers["x-penstock-served-by"] for _ in range(2)] == ["i", "j"]
    entry = gateway.ledger_entry(send_request(gateway))
    assert [(attempt["model"], attempt["status"], attempt["error"]) for attempt in entry["attempts"]] == [
        ("i", 429, "over_limit"),
        ("j", 200, None),
    ]


def test_target_over_its_own_limit_is_not_retried(gateway: GatewayProcess, upstream: Upstream) -> None:
    limited = direct("k", rate_limit={"rpm": 1}, retries=2)
    gateway.reload(resources(upstream.url, models=[limited, group("k", retries=2)]))
    assert send_request(gateway).status == 200
    reply = send_request(gateway)
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_exceeded")
    entry = gateway.ledger_entry(reply)
    assert [(attempt["kind"], attempt["error"]) for attempt in entry["attempts"]] == [("initial", "over_limit")]
    assert len(upstream.requests) == 1


def test_reload_ends_the_cooldown_of_changed_models_only(gateway: GatewayProcess, upstream: Upstream) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if request.json["model"] == "l-upstream":
            connection.reply(500, {}, retry_after="300")
        else:
            normal_reply(request, connection)

    def served_by() -> str:
        return str(send_request(gateway).headers["x-penstock-served-by"])

    others = [direct("m"), group("l", "m")]
    gateway.reload(resources(upstream.url, models=[direct("l"), *others]))
    upstream.use_script(script)
    assert served_by() == "m"
    upstream.use_script(normal_reply)
    gateway.reload(resources(upstream.url, models=[direct("l"), direct("new"), *others]))
    assert served_by() == "m"  # only another model was added
    gateway.reload(resources(upstream.url, models=[direct("l", cooldown={"enabled": False}), *others]))
    assert served_by() == "l"


LOOPBACK, ELSEWHERE = {"allowed_cidrs": ["127.0.0.0/8"]}, {"allowed_cidrs": ["10.0.0.0/8"]}


def test_target_that_the_address_may_not_use_is_skipped(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("n", **ELSEWHERE), direct("o", **LOOPBACK), group("n", "o")]
    gateway.reload(resources(upstream.url, models=models))
    reply = send_request(gateway)
    assert (reply.status, reply.headers["x-penstock-served-by"]) == (200, "o")
    assert [attempt["model"] for attempt in gateway.ledger_entry(reply)["attempts"]] == ["o"]


def test_group_without_a_target_for_the_address_is_refused(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("n", **ELSEWHERE), direct("o", **ELSEWHERE), group("n", "o")]
    gateway.reload(resources(upstream.url, models=models))
    reply = send_request(gateway)
    assert (reply.status, reply.error["type"], reply.error["code"]) == (403, "permission_denied", "ip_restricted")
    assert not upstream.requests


@pytest.mark.parametrize("strategy", ["failover", "round_robin"])
def test_failed_group_does_not_fall_back_to_a_target_that_the_address_may_not_use(
    gateway: GatewayProcess, upstream: Upstream, strategy: str
) -> None:
    models = [direct("n", **LOOPBACK), direct("o", **ELSEWHERE), group("n", "o", strategy=strategy)]
    gateway.reload(resources(upstream.url, models=models))
    upstream.reply_with({"error": {"message": "no"}}, 500)
    for _ in range(2):
        assert send_request(gateway).status in (502, 503)
    assert {request.json["model"] for request in upstream.requests} == {"n-upstream"}

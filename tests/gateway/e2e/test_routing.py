"""Retries, failover, turns and cooldown, through the whole gateway."""

from __future__ import annotations

from typing import Any

import pytest

from support.gateway_process import GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import CHAT_USAGE, Received, Upstream, Wire, answer, chat_events, response_events


def direct(name: str, key: str = "up", **more: Any) -> dict[str, Any]:
    base = {
        "display_name": name,
        "provider": "openai",
        "model_name": f"{name}-upstream",
        "provider_key": key,
        "retries": 0,
    }
    return base | more


def group(*targets: str, **routing: Any) -> dict[str, Any]:
    return {"display_name": "group", "routing": {"targets": [{"model": name} for name in targets], **routing}}


def provider(name: str, url: str, **more: Any) -> dict[str, Any]:
    return {"display_name": name, "provider": "openai", "adapter": "openai", "api_key": "sk-x", "api_base": url, **more}


def ask(gateway: GatewayProcess, model: str = "group", **more: Any) -> Any:
    return gateway.post("/v1/responses", {"model": model, "input": "Hi.", **more})


def flaky(failures: int, status: int = 500, **headers: str) -> Any:
    count = iter(range(1000))

    def script(request: Received, wire: Wire) -> None:
        if next(count) < failures:
            wire.reply(status, {"error": {"message": "no"}}, **headers)
        else:
            answer(request, wire)

    return script


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_tried_again(gateway: GatewayProcess, upstream: Upstream, stream: bool) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 2}))
    upstream.does(flaky(1))
    reply = gateway.respond(stream=stream)
    assert reply.status == 200
    entry = gateway.entry(reply)
    assert [attempt["kind"] for attempt in entry["attempts"]] == ["initial", "retry"]
    assert [attempt["error"] for attempt in entry["attempts"]] == ["upstream_status", None]
    assert entry["attempts"][1]["started_ms"] - entry["attempts"][0]["ended_ms"] >= 240


def test_a_short_retry_after_is_waited_for(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 1}))
    upstream.does(flaky(1, 503, retry_after="1"))
    entry = gateway.entry(gateway.respond())
    assert entry["attempts"][1]["started_ms"] - entry["attempts"][0]["ended_ms"] >= 990


def test_errors_of_the_request_are_not_tried_again(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, model={"retries": 3}))
    upstream.does(flaky(1, 429))
    assert gateway.respond().status == 429
    assert len(upstream.requests) == 1


def test_failover_walks_the_targets_and_leaves_the_broken_one_alone(
    gateway: GatewayProcess, upstream: Upstream
) -> None:
    other = Upstream()
    given = resources(
        upstream.url,
        provider_keys=[provider("two", other.url)],
        models=[direct("a"), direct("b", "two"), group("a", "b")],
    )
    gateway.reload(given)
    upstream.replies({}, 500)
    reply = ask(gateway)
    assert reply.status == 200
    assert reply.headers["x-penstock-served-by"] == "b"
    assert other.requests[0].json["model"] == "b-upstream"
    entry = gateway.entry(reply)
    assert (entry["model"], entry["upstream_model"]) == ("group", "b-upstream")
    kinds = [(attempt["model"], attempt["kind"]) for attempt in entry["attempts"]]
    assert kinds == [("a", "initial"), ("b", "fallback")]
    # the first is cooling down now, so the second is asked at once
    assert [attempt["model"] for attempt in gateway.entry(ask(gateway))["attempts"]] == ["b"]
    # a broken one and one in cooldown: nothing is left, and nobody is asked
    other.replies({}, 503)
    assert ask(gateway).status == 502
    refused = ask(gateway)
    assert (refused.status, refused.error["type"]) == (503, "all_candidates_unavailable")
    assert refused.headers["retry-after"] == "30"
    # a direct alias is not spared
    upstream.does(answer)
    assert ask(gateway, "a").status == 200
    other.stop()


def test_failover_of_a_stream_until_its_first_byte(gateway: GatewayProcess, upstream: Upstream) -> None:
    def script(request: Received, wire: Wire) -> None:
        if request.json["model"] == "c-upstream":
            wire.start()
            wire.cut()
        else:
            answer(request, wire)

    gateway.reload(resources(upstream.url, models=[direct("c"), direct("d"), group("c", "d")]))
    upstream.does(script)
    stream = gateway.stream(body={"model": "group"})
    assert stream.status == 200
    assert b"response.completed" in stream.rest()
    assert [attempt["error"] for attempt in gateway.entry(stream)["attempts"]] == ["transport", None]


def test_a_target_that_breaks_off_in_mid_stream_is_left_alone(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The caller has been served, if badly; the next one is spared."""

    def script(request: Received, wire: Wire) -> None:
        if request.json["model"] == "m-upstream":
            wire.start()
            wire.chunk(response_events()[0])
            wait_for(lambda: len(streams) == len(upstream.requests), 10)
            wire.cut()
        else:
            answer(request, wire)

    gateway.reload(resources(upstream.url, models=[direct("m"), direct("n"), group("m", "n")]))
    upstream.does(script)
    streams: list[Any] = []
    for _ in range(3):
        streams.append(gateway.stream(body={"model": "group"}))
        streams[-1].rest()
    assert [request.json["model"] for request in upstream.requests] == ["m-upstream", "n-upstream", "n-upstream"]
    entries = [gateway.entry(stream) for stream in streams]
    assert [(entry["status"], entry["error"]) for entry in entries] == [
        (502, "stream_aborted"),
        (200, None),
        (200, None),
    ]


def test_what_a_lost_stream_came_to_is_counted(gateway: GatewayProcess, upstream: Upstream) -> None:
    """Held back by a guardrail and lost with its target: it was billed, to the caller's limits and to the target's."""

    def script(request: Received, wire: Wire) -> None:
        if request.json["model"] == "o-upstream":
            wire.start()
            for piece in chat_events(["Hello"], usage=CHAT_USAGE, done=False):
                wire.chunk(piece)
            wire.cut()
        else:
            wire.stream(chat_events(["Hello"], usage=CHAT_USAGE))

    first = direct("o", rate_limit={"tpm": 70}, cooldown={"enabled": False})
    models = [first, direct("p"), group("o", "p")]
    gateway.reload(resources(upstream.url, models=models, guardrails=[keyword("words", "nothing-of-this")]))
    upstream.does(script)
    ways = []
    for _ in range(2):
        stream = gateway.stream("/v1/chat/completions", {"model": "group", "max_tokens": 10})
        assert b"[DONE]" in stream.rest()
        entry = gateway.entry(stream)
        ways.append([(attempt["model"], attempt["error"]) for attempt in entry["attempts"]])
        assert entry["usage_source"] == "upstream"
        tokens = (17, 23) if len(ways) == 2 else (34, 46)
        assert (entry["input_tokens"], entry["output_tokens"]) == tokens
    assert ways == [[("o", "transport"), ("p", None)], [("o", "over_limit"), ("p", None)]]


@pytest.mark.parametrize("routing", [{"retry_on_429": True}, {"fallback_on_statuses": [429]}])
def test_a_429_moves_on_only_if_the_group_says_so(
    gateway: GatewayProcess, upstream: Upstream, routing: dict[str, Any]
) -> None:
    def script(request: Received, wire: Wire) -> None:
        if request.json["model"].startswith("busy"):
            wire.reply(429, {"error": {"message": "busy", "code": "rate_limit_exceeded"}}, retry_after="1")
        else:
            answer(request, wire)

    quick = {"cooldown": {"enabled": False}}
    models = [direct("busy", **quick), direct("free", **quick)]
    gateway.reload(resources(upstream.url, models=[*models, group("busy", "free")]))
    upstream.does(script)
    assert ask(gateway).status == 429
    gateway.reload(resources(upstream.url, models=[*models, group("busy", "free", **routing)]))
    assert ask(gateway).status == 200


def test_round_robin_takes_turns(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("e"), direct("f"), group("e", "f", strategy="round_robin")]
    gateway.reload(resources(upstream.url, models=models))
    for _ in range(4):
        assert ask(gateway).status == 200
    assert [request.json["model"] for request in upstream.requests].count("e-upstream") == 2


def test_a_group_serves_responses_with_its_openai_targets_only(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("g", provider="deepseek"), direct("h"), group("g", "h")]
    gateway.reload(resources(upstream.url, models=models))
    assert ask(gateway).status == 200
    assert upstream.requests[0].json["model"] == "h-upstream"
    gateway.reload(resources(upstream.url, models=[direct("g", provider="deepseek"), group("g")]))
    assert ask(gateway).status == 400


def test_a_target_over_its_own_limit_is_passed_over(gateway: GatewayProcess, upstream: Upstream) -> None:
    models = [direct("i", rate_limit={"rpm": 1}), direct("j"), group("i", "j")]
    gateway.reload(resources(upstream.url, models=models))
    assert [ask(gateway).headers["x-penstock-served-by"] for _ in range(2)] == ["i", "j"]
    entry = gateway.entry(ask(gateway))
    assert [(attempt["model"], attempt["status"], attempt["error"]) for attempt in entry["attempts"]] == [
        ("i", 429, "over_limit"),
        ("j", 200, None),
    ]


def test_a_target_over_its_own_limit_is_not_asked_again(gateway: GatewayProcess, upstream: Upstream) -> None:
    limited = direct("k", rate_limit={"rpm": 1}, retries=2)
    gateway.reload(resources(upstream.url, models=[limited, group("k", retries=2)]))
    assert ask(gateway).status == 200
    reply = ask(gateway)
    assert (reply.status, reply.error["type"]) == (429, "rate_limit_exceeded")
    entry = gateway.entry(reply)
    assert [(attempt["kind"], attempt["error"]) for attempt in entry["attempts"]] == [("initial", "over_limit")]
    assert len(upstream.requests) == 1


def test_a_reload_ends_the_cooldown_of_what_it_changes(gateway: GatewayProcess, upstream: Upstream) -> None:
    gateway.reload(resources(upstream.url, models=[direct("l"), group("l")]))
    upstream.replies({}, 500)
    assert [ask(gateway).status for _ in range(2)] == [502, 503]
    upstream.does(answer)
    gateway.reload(resources(upstream.url, models=[direct("l"), direct("new"), group("l")]))
    assert ask(gateway).status == 503  # another model is new; this one is as it was
    gateway.reload(resources(upstream.url, models=[direct("l", cooldown={"enabled": False}), group("l")]))
    assert ask(gateway).status == 200

"""Waiting for a server: what counts as ready, and what is sent to find out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.endpoints.base import endpoint_named
from penstock.errors import UserError
from penstock.runs.readiness import Readiness
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from support.http_server import HttpReply, HttpRequest, HttpServer

Reply = tuple[int, Any]
Asked = tuple[str, str, dict[str, Any] | None, dict[str, str]]
"""Method, path, body and headers of a request."""
LISTED: Reply = (200, {"object": "list", "data": [{"id": "m"}, {"id": "n"}]})
NOT_FOUND: Reply = (404, {})


@contextmanager
def serving(answer: Callable[[str, str, int], Reply]) -> Iterator[tuple[str, list[Asked]]]:
    """Serve `answer(method, path, number)`; yield the URL and the list of requests."""
    asked: list[Asked] = []

    def reply(request: HttpRequest, number: int) -> HttpReply:
        body = json.loads(request.body) if request.body else None
        asked.append((request.method, request.path, body, request.header_values))
        status, value = answer(request.method, request.path, number)
        return HttpReply(json.dumps(value).encode(), status)

    with HttpServer(reply) as server:
        yield server.url, asked


def wait(url: str, *flags: str, model: str = "m") -> list[str]:
    """Wait for the server, and return the reasons why it was not ready."""
    words = ["-m", model, "-u", url, "--wait-for-model-interval", "0.01", "--wait-for-model-timeout", *flags]
    settings = resolve(parse(PROFILE, words))
    reasons: list[str] = []
    readiness = Readiness(settings, endpoint_named(settings.endpoint.type, settings.endpoint))
    readiness.wait(lambda seconds, timeout, reason: reasons.append(reason))
    return reasons


@pytest.mark.parametrize("status", [200, 400, 404, 429])
def test_any_answer_below_500_to_a_request_for_one_token_is_ready(status: int) -> None:
    with serving(lambda method, path, number: (status if number == 2 else 503, {})) as (url, asked):
        wait(f"{url}/v1?tenant=7", "60", "--streaming", "--api-key", "k", "-H", "Host:model.example", "X-Team:a")
    assert len(asked) == 3
    method, path, body, headers = asked[-1]
    assert (method, path) == ("POST", "/v1/chat/completions?tenant=7")
    assert body is not None
    assert (body["model"], body["max_completion_tokens"]) == ("m", 1)
    assert not body.get("stream")
    assert (headers["authorization"], headers["host"], headers["x-team"]) == ("Bearer k", "model.example", "a")


def test_models_mode_waits_until_every_model_is_listed() -> None:
    listed = [(200, {"data": []}), (503, {}), (200, "no list"), (200, {"data": [{"id": "m"}]}), LISTED]
    with serving(lambda method, path, number: listed[number]) as (url, asked):
        wait(url, "60", "--wait-for-model-mode", "models", model="m,n")
    assert [(method, path) for method, path, _, _ in asked] == [("GET", "/v1/models")] * 5


def test_server_without_a_list_of_models_is_ready_when_it_answers() -> None:
    with serving(lambda method, path, number: NOT_FOUND) as (url, asked):
        wait(f"{url}/base/v1/chat/completions", "60", "--wait-for-model-mode", "models")
    assert [path for _, path, _, _ in asked] == ["/base/v1/models", "/base"]


def test_both_modes_ask_for_the_list_and_for_a_token_of_each_model() -> None:
    with serving(lambda method, path, number: LISTED) as (url, asked):
        wait(url, "60", "--wait-for-model-mode", "both", "--endpoint-type", "responses", model="m,n")
    assert [path for _, path, _, _ in asked] == ["/v1/models", "/v1/responses", "/v1/responses"]
    assert [body["model"] for _, _, body, _ in asked if body] == ["m", "n"]


def test_every_url_has_to_be_ready() -> None:
    with serving(lambda *_: LISTED) as (first, asked), serving(lambda *_: LISTED) as (second, others):
        wait(first, "60", "-u", second)
    assert (len(asked), len(others)) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "flags", "reason"),
    [
        ((503, {}), (), "it answers a request with status 503."),
        ((401, {}), ("--wait-for-model-mode", "models"), "it answers GET /v1/models with status 401."),
        ((200, {"data": [{"id": "a"}]}), ("--wait-for-model-mode", "models"), "it lists a, and not m."),
    ],
)
def test_error_names_the_url_the_time_and_the_reason(answer: Reply, flags: tuple[str, ...], reason: str) -> None:
    with serving(lambda *_: answer) as (url, _), pytest.raises(UserError) as caught:
        wait(url, "0.05", *flags)
    assert str(caught.value) == f"{url} was not ready within 0.05 s (--wait-for-model-timeout): {reason}"


def test_endpoint_that_builds_no_bodies_needs_the_list_of_models() -> None:
    with pytest.raises(UserError, match="--endpoint-type raw cannot build; use --wait-for-model-mode models"):
        wait("http://127.0.0.1:9", "1", "--endpoint-type", "raw")
    with serving(lambda *_: NOT_FOUND) as (url, _):
        wait(url, "60", "--endpoint-type", "raw", "--wait-for-model-mode", "models")


@pytest.mark.parametrize("words", [["--wait-for-model-mode", "both"], ["--wait-for-model-interval", "2"]])
def test_flags_that_adjust_the_waiting_need_its_time(words: list[str]) -> None:
    with pytest.raises(UserError, match=f"{words[0]} says how to wait for the server, but --wait-for-model-timeout"):
        resolve(parse(PROFILE, ["-m", "m", *words]))

"""Requests of pages in a browser (CORS), and connections that are kept open."""

from __future__ import annotations

import http.client
from typing import Any

import pytest

from support.gateway_process import CALLER, GatewayProcess, resources
from support.scripted_upstream import Upstream

PAGE = "https://app.example"
ASK = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def cors(headers: dict[str, str]) -> set[str]:
    return {name for name in headers if name.startswith("access-control-")}


def test_no_cors_headers_are_sent_by_default(gateway: GatewayProcess) -> None:
    assert cors(gateway.respond(headers={"Origin": PAGE}).headers) == set()
    refused = gateway.request("OPTIONS", "/v1/responses", headers=ASK)
    assert (refused.status, cors(refused.headers)) == (405, set())


def test_page_of_an_allowed_origin_can_send_and_read(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"cors_origins": [PAGE, "http://localhost:8080"]})
    preflight = gateway.request("OPTIONS", "/v1/responses", headers=ASK)
    assert (preflight.status, preflight.body) == (200, b"")
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-methods"] == "POST"
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    for stream in (False, True):
        reply = gateway.respond(headers={"Origin": PAGE}, stream=stream)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
    refusal = gateway.respond(headers={"Origin": PAGE}, key="sk-unknown")
    assert (refusal.status, refusal.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize("origin", ["https://other.example", "https://app.example.evil", "null", "http://app.example"])
def test_page_of_another_origin_gets_no_permission(start: Any, upstream: Upstream, origin: str) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"cors_origins": [PAGE]})
    preflight = gateway.request("OPTIONS", "/v1/responses", headers=ASK | {"Origin": origin})
    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in gateway.respond(headers={"Origin": origin}).headers


def test_all_origins_are_allowed_by_a_star(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"cors_origins": ["*"]})
    assert gateway.respond(headers={"Origin": "https://any.example"}).headers["access-control-allow-origin"] == "*"


def test_idle_connection_is_kept_as_long_as_configured(start: Any, upstream: Upstream) -> None:
    gateway: GatewayProcess = start(resources(upstream.url), listen={"keep_alive_s": 0.2})
    connection = http.client.HTTPConnection(
        "127.0.0.1", gateway.port, timeout=25
    )  # less than the default of the setting
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {CALLER}"})
    connection.getresponse().read()
    assert connection.sock.recv(1) == b""

"""Requests that are lost with their connection."""

from __future__ import annotations

from collections.abc import Callable

from support.programs import MockServer, Program


def test_every_request_that_the_server_drops_is_a_failure(mock: Callable[..., MockServer], program: Program):
    """The server drops requests on reused connections at once, which must not look like a stale connection."""
    server = mock(ttft=1, cut=0, cut_rate=0.3)
    outcome = program.profile(server.url, "--concurrency", 4, "--request-count", 100)
    dropped = sum(request["end"] == "cut" for request in server.logged_requests())
    assert dropped > 0
    assert outcome.summary["error_request_count"]["avg"] == dropped
    assert len(server.logged_requests()) == 100
    assert "resent_request_count" not in outcome.summary

"""Redirects from one server to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.http_server import HttpReply, HttpRequest, HttpServer
from support.programs import MockServer, Program


@pytest.fixture
def redirecting(mock: Callable[..., MockServer]) -> Iterator[tuple[str, MockServer]]:
    """The URL of a server that redirects every request to the mock."""
    target = mock(ttft=1)

    def redirect(request: HttpRequest, _: int) -> HttpReply:
        return HttpReply(status=307, headers={"Location": target.url + request.path})

    with HttpServer(redirect) as server:
        yield server.url, target


def test_redirect_to_another_server_fails_and_shows_where_it_pointed(
    program: Program, redirecting: tuple[str, MockServer]
):
    url, target = redirecting
    outcome = program.profile(url, "--request-count", 2)
    assert outcome.status == 1, outcome
    (error,) = outcome.errors()
    assert f"redirects to {target.url}/v1/chat/completions, which was not followed" in error["message"]
    assert target.logged_requests() == []


def test_redirect_to_another_server_is_followed_with_the_flag_and_counted(
    program: Program, redirecting: tuple[str, MockServer]
):
    url, target = redirecting
    outcome = program.profile(url, "--request-count", 3, "--follow-cross-origin-redirects")
    assert outcome.status == 0, outcome
    assert len(target.logged_requests()) == 3
    assert outcome.summary["redirect_count"]["avg"] == 3
    assert "Redirect Count" in outcome.out
    assert [line["metadata"]["redirects"] for line in outcome.records] == [1, 1, 1]

"""Redirects from one server to another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.programs import MockServer, Program


@pytest.fixture
def redirecting(mock: Callable[..., MockServer]) -> Iterator[tuple[str, MockServer]]:
    """The URL of a server that redirects every request to the mock."""
    target = mock(ttft=1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", target.url + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", target
        server.shutdown()


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

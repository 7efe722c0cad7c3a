"""Requests that are lost with their connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest

from support.http_server import HttpReply, HttpRequest, HttpServer
from support.programs import Capture, MockServer, Program


def test_every_request_that_the_server_drops_is_a_failure(mock: Callable[..., MockServer], program: Program):
    """The server drops requests on reused connections at once, which must not look like a stale connection."""
    server = mock(ttft=1, cut=0, cut_rate=0.3)
    outcome = program.profile(server.url, "--concurrency", 4, "--request-count", 100)
    dropped = sum(request["end"] == "cut" for request in server.logged_requests())
    assert dropped > 0
    assert outcome.summary["error_request_count"]["avg"] == dropped
    assert len(server.logged_requests()) == 100
    assert "resent_request_count" not in outcome.summary


@pytest.mark.parametrize("turns", [1, 2])
def test_restart_of_the_server_does_not_use_up_the_requests(program: Program, turns: int) -> None:
    """The slots of a closed loop wait before they try a server again that refuses connections."""
    ended = threading.Event()

    def answer(_request: HttpRequest, number: int) -> HttpReply:
        if number >= 20:
            ended.set()
        return HttpReply(json.dumps(Capture.ANSWER).encode(), headers={"Connection": "close"})

    server = HttpServer(answer)
    flags = ["--concurrency", 4, "--conversation-num", 200 // turns, "--conversation-turn-mean", turns]
    others = ["--conversation-turn-stddev", 0, "--max-error-rate", 1, "--isl", 10, "--tokenizer", "builtin"]
    running = program.begin(server.url, *flags, *others, texts=None)
    assert ended.wait(60)
    server.stop()
    time.sleep(0.7)  # the time without a server; a refused connection takes 0.2 ms
    with HttpServer(lambda *_: HttpReply(json.dumps(Capture.ANSWER).encode()), server.port):
        outcome = running.wait()
    failed = outcome.summary["error_request_count"]["avg"]
    assert 0 < failed < 60
    assert outcome.summary["certificate"]["figures"]["refusals_waited_s"] > 0
    notes = " ".join(outcome.text("profile_export_console.txt").split())
    assert "before they sent to a server again that had refused connections." in notes

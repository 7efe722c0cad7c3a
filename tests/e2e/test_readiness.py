"""A command that waits for its server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from support.programs import Program, Running

WAIT = ["--request-count", 3, "--wait-for-model-interval", 0.05, "--wait-for-model-timeout"]


@pytest.fixture
def refusing() -> Iterator[socket.socket]:
    """A port that nothing listens on, and that no other program gets."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock


def url_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


def begin(program: Program, sock: socket.socket) -> Running:
    """Start a run and return when it waits."""
    running = program.begin(url_of(sock), *WAIT, 120)
    assert running.process.stdout is not None
    lines = iter(running.process.stdout.readline, "")
    assert any("Waiting for the server: 0 of 120 s; Nothing listens on" in line for line in lines)
    return running


def test_run_starts_when_the_server_does_and_reports_its_own_requests_only(mock, program, refusing):
    running = begin(program, refusing)
    port = refusing.getsockname()[1]
    refusing.close()
    server = mock(port=port)
    outcome = running.wait()
    assert outcome.status == 0, outcome
    assert outcome.summary["request_count"]["avg"] == 3
    assert len(server.logged_requests()) == 4  # one of them asked whether the model is ready


def test_ctrl_c_ends_the_waiting_and_writes_nothing(program, refusing):
    running = begin(program, refusing)
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 130
    assert outcome.err == "Interrupted before the first request: nothing was written.\n"
    assert not outcome.folder.exists()


def test_server_that_never_starts_is_one_sentence_and_writes_nothing(program, refusing):
    outcome = program.profile(url_of(refusing), *WAIT, 0.2)
    assert outcome.status == 2
    assert f"{url_of(refusing)} was not ready within 0.2 s (--wait-for-model-timeout)" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not outcome.folder.exists()

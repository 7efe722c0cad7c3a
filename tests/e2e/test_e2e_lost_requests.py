"""A server that takes a request, works on it and dies: that is its failure, however its connection was used before."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator

import pytest

from programs import Program

_BODY = json.dumps({"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]}).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_WORK_S = 0.4


class _Drops(socketserver.StreamRequestHandler):
    """Answers three requests of a connection; the fourth it works on, and closes the connection."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        for number in range(4):
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if not self.rfile.read(length):
                return
            self.server.taken += 1  # type: ignore[attr-defined]
            if number == 3:
                threading.Event().wait(_WORK_S)
                return
            self.wfile.write(_REPLY)


@pytest.fixture
def dropping() -> Iterator[socketserver.ThreadingTCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Drops) as server:
        server.daemon_threads = True
        server.taken = 0  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_request_that_the_server_took_and_dropped_is_a_failed_request(dropping, program: Program):
    outcome = program.profile(f"http://127.0.0.1:{dropping.server_address[1]}", "--request-count", 16)
    assert outcome.status == 1, outcome
    assert dropping.taken == 16
    assert (outcome.summary["request_count"]["avg"], outcome.summary["error_request_count"]["avg"]) == (12, 4)
    assert {error["type"] for error in outcome.errors()} == {"ConnectionLost"}
    assert outcome.summary["certificate"]["figures"]["stale_connections"] == 0

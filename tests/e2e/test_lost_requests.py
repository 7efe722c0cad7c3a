"""A server that takes a request, works on it and dies: that is its failure, however its connection was used before."""

from __future__ import annotations

import json
import select
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.records.log import RunLog
from support.programs import Program

_BODY = json.dumps({"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]}).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_WORK_S = 0.4
_FORGOTTEN_S = 0.1


class _Forgets(socketserver.StreamRequestHandler):
    """Answers one request; the next one of the first connection it leaves unread, and closes a while later."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.server.connections += 1  # type: ignore[attr-defined]
        while (line := self.rfile.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        self.wfile.write(_REPLY)
        if self.server.connections == 1:  # type: ignore[attr-defined]
            select.select([self.connection], [], [], 60)
            threading.Event().wait(_FORGOTTEN_S)


class _Curt(socketserver.ThreadingTCPServer):
    """Closes without a word: with something unread that is a reset, and nothing before it."""

    daemon_threads = True
    connections = 0

    def shutdown_request(self, request: Any) -> None:
        request.close()


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


def test_what_the_first_try_took_is_no_lateness_of_ours(program: Program):
    with _Curt(("127.0.0.1", 0), _Forgets) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        outcome = program.profile(f"http://127.0.0.1:{server.server_address[1]}", "--request-count", 2)
        server.shutdown()
    assert outcome.status == 0, outcome
    assert [line["metadata"].get("retries") for line in outcome.records] == [None, 1]
    assert "1 sent again on a new connection" in " ".join(outcome.out.split())
    log = RunLog(str(outcome.folder / "log"))
    (report,) = log.reports()
    waits = [record.start - record.issued for record in log.records()]
    log.close()
    assert report.lateness.n == 2
    assert report.lateness.total <= sum(waits) - _FORGOTTEN_S * 1e9 + 2

"""Requests that are sent again because the server had closed their connection."""

from __future__ import annotations

import json
import select
import socketserver
import threading
from typing import Any

from penstock.records.log import RunLog
from support.programs import Program

_BODY = json.dumps({"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]}).encode()
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_UNREAD_S = 0.1


class _LeavesUnread(socketserver.StreamRequestHandler):
    """Answers one request. On the first connection, leaves the next one unread and closes 0.1 s later."""

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
            threading.Event().wait(_UNREAD_S)


class _ResettingServer(socketserver.ThreadingTCPServer):
    """Closes connections without a shutdown, so unread data causes a TCP reset."""

    daemon_threads = True
    connections = 0

    def shutdown_request(self, request: Any) -> None:
        request.close()


def test_retry_is_reported_and_its_first_attempt_is_not_lateness(program: Program):
    with _ResettingServer(("127.0.0.1", 0), _LeavesUnread) as server:
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
    assert report.lateness.total <= sum(waits) - _UNREAD_S * 1e9 + 2

"""The listener for operators: health, what is configured, metrics. It is answered by the main process, so that a scrape
takes nothing from the requests, and it knows nothing that a caller may not know either: no secret passes here.

    /livez          the main process is alive; with ?verbose=1 a line for each check
    /readyz         200 while callers can connect and we do not drain, else 503; it says how many workers there are.
                    /status/ready is the same
    /status/config  which resource file counts, and why a newer one does not
    /metrics        Prometheus text
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import orjson

from penstock import __version__

__all__ = ["Answer", "StatusListener"]

Answer = tuple[int, str, bytes]
"""Status, content type, body."""

_TEXT = "text/plain; charset=utf-8"


class StatusListener:
    def __init__(
        self,
        host: str,
        port: int,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        config: Callable[[], dict[str, object]],
        metrics: Callable[[], tuple[str, bytes]],
    ) -> None:
        """Binds at once; OSError when it cannot."""
        self._ready = ready
        self._config = config
        self._metrics = metrics
        listener = self

        class Handler(BaseHTTPRequestHandler):
            server_version = f"Penstock/{__version__}"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                status, kind, body = listener.answer(path, verbose=parse_qs(query).get("verbose", ["0"])[-1] != "0")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """The access log is for requests to models."""

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Listening((host, port), Handler)
        self.port = int(self._server.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="penstock-status", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, *, verbose: bool = False) -> Answer:
        match path:
            case "/livez":
                return 200, _TEXT, self._checks() if verbose else b"ok"
            case "/readyz" | "/status/ready":
                ready, detail = self._ready()
                return 200 if ready else 503, "application/json", orjson.dumps(detail)
            case "/status/config":
                return 200, "application/json", orjson.dumps(self._config())
            case "/metrics":
                kind, body = self._metrics()
                return 200, kind, body
            case _:
                return 404, _TEXT, b"/livez, /readyz, /status/ready, /status/config and /metrics are here"

    def _checks(self) -> bytes:
        """A line for each of them. One that fails may make a gateway not ready; it lives as long as it can say so."""
        ready, detail = self._ready()
        state = self._config()["state"]
        checks = [
            (True, "main process", "answers"),
            (ready, "ready", orjson.dumps(detail).decode()),
            (state == "synced", "resources", state),
        ]
        lines = [f"[{'+' if good else '-'}] {name}: {said}" for good, name, said in checks]
        return "\n".join([*lines, "ok"]).encode()

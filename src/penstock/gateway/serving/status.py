"""The status listener for operators. It runs in the main process, so that a scrape does not slow down requests. Its
replies contain no secrets.

    /livez          the main process is alive; with ?verbose=1 one line for each check
    /readyz         200 while callers can connect and the gateway does not drain, else 503; with the number of workers.
                    /status/ready is the same
    /status/config  the resource file in use, and why a newer one was rejected
    /metrics        metrics in Prometheus text format
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

StatusResponse = tuple[int, str, bytes]
"""Status, content type, body."""

_TEXT = "text/plain; charset=utf-8"


class StatusListener:
    """An HTTP server in a thread of its own. The constructor binds the port, and raises OSError if it cannot."""

    def __init__(
        self,
        host: str,
        port: int,
        ready: Callable[[], tuple[bool, dict[str, object]]],
        config: Callable[[], dict[str, object]],
        metrics: Callable[[], tuple[str, bytes]],
        inherited: socket.socket | None = None,
    ) -> None:
        """`inherited` is a listening socket to use instead of opening one."""
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
                status, kind, body = listener.respond(path, verbose=parse_qs(query).get("verbose", ["0"])[-1] != "0")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Do not log: the access log is for requests of callers."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, port), Handler, bind_and_activate=inherited is None)
        if inherited is not None:
            self._server.socket.close()
            self._server.socket = inherited
            self._server.server_address = inherited.getsockname()
        self.port = int(self._server.server_address[1])

    def fileno(self) -> int:
        """Return the descriptor of the listening socket."""
        return self._server.fileno()

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="penstock-status", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def close_listener(self) -> None:
        """Stop accepting connections; another process has the listening socket, too. Call `stop` as well."""
        self._server.shutdown()
        self._server.socket.close()

    def respond(self, path: str, *, verbose: bool = False) -> StatusResponse:
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
                return 404, _TEXT, b"Unknown path; try /livez, /readyz, /status/ready, /status/config or /metrics."

    def _checks(self) -> bytes:
        """Return one line for each check. A failed check does not fail /livez."""
        ready, detail = self._ready()
        state = self._config()["state"]
        checks = [
            (True, "main process", "answers"),
            (ready, "ready", orjson.dumps(detail).decode()),
            (state == "synced", "resources", state),
        ]
        lines = [f"[{'+' if passed else '-'}] {name}: {detail}" for passed, name, detail in checks]
        return "\n".join([*lines, "ok"]).encode()

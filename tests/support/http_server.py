"""A local HTTP/1.1 server whose replies a test defines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def header_values(self) -> dict[str, str]:
        """The headers by lower-case name."""
        return {name.lower(): value for name, value in self.headers.items()}


class HttpReply(NamedTuple):
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}


class HttpServer:
    """Answers every request with `answer(request, number)`, and keeps the requests."""

    def __init__(self, answer: Callable[[HttpRequest, int], HttpReply], port: int = 0) -> None:
        self.received: list[HttpRequest] = []
        received, lock, keeps = self.received, threading.Lock(), self.keeps

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # otherwise each body waits 40 ms for the acknowledgement of its head

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = HttpRequest(self.command, self.path, self.headers, body)
                reply = HttpReply(status=404)
                if keeps(request):
                    with lock:
                        number = len(received)
                        received.append(request)
                    reply = answer(request, number)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else reply.body)

            do_GET = do_HEAD = do_PUT = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()  # stops within 20 ms

    def keeps(self, request: HttpRequest) -> bool:
        """Return whether a request is kept and answered; any other gets status 404."""
        del request
        return True

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

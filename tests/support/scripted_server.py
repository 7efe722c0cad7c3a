"""A server whose replies a test defines, and which records every request body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ReplyFunction = Callable[[dict[str, Any], int], "bytes | dict[str, Any]"]
"""Takes a request body and its number. Returns a stream of events as bytes, or an object to send as JSON."""


class ScriptedServer:
    def __init__(self, make_reply: ReplyFunction) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        """The correlation id of each body, which names its conversation."""
        server = self
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    number = len(server.bodies)
                    server.bodies.append(body)
                    server.sessions.append(self.headers["x-correlation-id"])
                reply = make_reply(body, number)
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(200)
                content_type = "text/event-stream" if isinstance(reply, bytes) else "application/json"
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()  # stops within 20 ms

    def conversations(self) -> list[list[dict[str, Any]]]:
        """Return the bodies of each conversation, in order."""
        bodies: dict[str, list[dict[str, Any]]] = {}
        for session, body in zip(self.sessions, self.bodies, strict=True):
            bodies.setdefault(session, []).append(body)
        return list(bodies.values())

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': 0, **fields})}\n\n".encode()


def response_object(text: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a response object with one message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [item],
        "usage": usage,
        **fields,
    }


def deltas(*texts: str) -> bytes:
    return b"".join(event("response.output_text.delta", output_index=0, content_index=0, delta=text) for text in texts)

"""A server whose replies a test defines, and which records every request body."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.http_server import HttpReply, HttpRequest, HttpServer

ReplyFunction = Callable[[dict[str, Any], int], "bytes | dict[str, Any]"]
"""Takes a request body and its number. Returns a stream of events as bytes, or an object to send as JSON."""


class ScriptedServer(HttpServer):
    def __init__(self, make_reply: ReplyFunction) -> None:
        self._make_reply = make_reply
        super().__init__(self._answer)

    def _answer(self, request: HttpRequest, number: int) -> HttpReply:
        reply = self._make_reply(json.loads(request.body), number)
        if isinstance(reply, bytes):
            return HttpReply(reply, headers={"Content-Type": "text/event-stream"})
        return HttpReply(json.dumps(reply).encode(), headers={"Content-Type": "application/json"})

    def keeps(self, request: HttpRequest) -> bool:
        return request.method != "GET"  # a run reads the metrics of its server

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.received]

    @property
    def sessions(self) -> list[str]:
        """The correlation id of each body, which names its conversation."""
        return [request.headers["x-correlation-id"] for request in self.received]

    def conversations(self) -> list[list[dict[str, Any]]]:
        """Return the bodies of each conversation, in order."""
        bodies: dict[str, list[dict[str, Any]]] = {}
        for session, body in zip(self.sessions, self.bodies, strict=True):
            bodies.setdefault(session, []).append(body)
        return list(bodies.values())


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

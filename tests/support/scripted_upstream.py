"""A provider that answers requests with a script of the test, and records requests and connections."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

USAGE = {
    "input_tokens": 17,
    "output_tokens": 23,
    "total_tokens": 40,
    "input_tokens_details": {"cached_tokens": 5},
    "output_tokens_details": {"reasoning_tokens": 8},
}
CHAT_USAGE = {"prompt_tokens": 17, "completion_tokens": 23, "total_tokens": 40}


class ReceivedRequest:
    """A request as the provider received it."""

    def __init__(self, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        self.method, self.path, _ = first.split(" ", 2)
        pairs = [line.split(":", 1) for line in lines if line]
        self.headers = {name.strip().lower(): value.strip() for name, value in pairs}
        self.head = head
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedConnection:
    """The server side of a connection, for scripts."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.open = True
        self.reusable = True

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", "content-length": str(len(data))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.raw(_head(status, sent) + data)

    def start(self, status: int = 200, **headers: str) -> None:
        sent = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self.raw(_head(status, sent | {name.replace("_", "-"): value for name, value in headers.items()}))

    def start_with(self, *pieces: bytes) -> None:
        """Send the head of a stream and its first pieces in one write, so that no timeout can fall between them."""
        self.raw(
            _head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
            + b"".join(map(_chunk, pieces))
        )

    def chunk(self, data: bytes) -> None:
        if data:
            self.raw(_chunk(data))

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def stream(self, pieces: Iterable[bytes], pause_s: float = 0.0, **headers: str) -> None:
        self.start(**headers)
        for piece in pieces:
            self.chunk(piece)
            if pause_s:
                time.sleep(pause_s)
        self.end()

    def reset(self) -> None:
        """Reset the connection."""
        self.reusable = False
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.sock.close()

    def wait_for(self, event: threading.Event) -> None:
        """Wait until the test sets the event, or the gateway closes the connection."""
        while not event.wait(0.01):
            if select.select([self.sock], [], [], 0)[0] and not self.sock.recv(1, socket.MSG_PEEK):
                return

    def closed_within(self, timeout: float = 100.0) -> bool:
        """Return whether the gateway closes the connection within so many seconds; by default more than a test waits."""
        self.reusable = False
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self.sock], [], [], left)
            try:
                if ready and not self.sock.recv(4096):
                    return True
            except OSError:
                return True
        return False


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


Script = Callable[[ReceivedRequest, ScriptedConnection], None]


class Upstream:
    """The provider's server. It runs `script` for every request."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._busy: set[socket.socket] = set()
        self.connections = 0
        self.requests: list[ReceivedRequest] = []
        self.script: Script = normal_reply
        threading.Thread(target=self._accept, daemon=True).start()

    def use_script(self, script: Script) -> None:
        """Use a script from now on, and forget earlier requests."""
        self.requests.clear()
        self.script = script

    def reply_with(self, body: Any, status: int = 200, **headers: str) -> None:
        self.use_script(lambda _request, connection: connection.reply(status, body, **headers))

    def stream_with(self, pieces: Iterable[bytes], pause_s: float = 0.0, **headers: str) -> None:
        chunks = list(pieces)
        self.use_script(lambda _request, connection: connection.stream(chunks, pause_s, **headers))

    @property
    def open(self) -> int:
        with self._lock:
            return len(self._open)

    @property
    def quiet(self) -> bool:
        """No script runs, and no connection is about to be closed by this side."""
        with self._lock:
            return not self._busy

    def stop(self) -> None:
        self._socket.close()
        with self._lock:
            for sock in self._open:
                sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = ScriptedConnection(sock)
        try:
            while connection.reusable and (request := _read(sock)) is not None:
                with self._lock:
                    self._busy.add(sock)
                self.requests.append(request)
                self.script(request, connection)
                if connection.reusable:
                    with self._lock:
                        self._busy.discard(sock)
        except OSError:
            pass
        finally:
            sock.close()
            with self._lock:
                self._open.discard(sock)
                self._busy.discard(sock)


def _read(sock: socket.socket) -> ReceivedRequest | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return None
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    request = ReceivedRequest(head.decode("latin-1"), b"")
    length = int(request.headers.get("content-length", "0"))
    while len(body) < length:
        more = sock.recv(1 << 20)
        if not more:
            return None
        body += more
    request.body = body
    return request


# -- scripts and bodies ---------------------------------------------------------------------------------------------------


def normal_reply(request: ReceivedRequest, connection: ScriptedConnection) -> None:
    """Answer like a provider, on any route."""
    stream = request.json.get("stream") is True
    if request.path.endswith("/responses"):
        if stream:
            connection.stream(response_events(["Hello", " from", " here."]))
        else:
            connection.reply(200, response_body("Hello from here."))
    elif request.path.endswith("/chat/completions"):
        if stream:
            connection.stream(chat_events(["Hello", " from", " here."]))
        else:
            connection.reply(200, chat_body("Hello from here."))
    elif request.path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]
        usage = {"prompt_tokens": 4, "total_tokens": 4}
        connection.reply(200, {"object": "list", "data": data, "model": "upstream-model", "usage": usage})
    else:
        choice = {"index": 0, "text": "Hello from here.", "finish_reason": "stop"}
        connection.reply(200, {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": CHAT_USAGE})


def response_body(text: str = "Hello.", *, usage: Any = USAGE, output: list[Any] | None = None) -> dict[str, Any]:
    message = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "status": "completed",
        "model": "gpt-4o-mini-2024-07-18",
        "output": [message] if output is None else output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if usage is None:
        del body["usage"]
    return body


def event(type_: str, number: int = 0, **members: Any) -> bytes:
    data = json.dumps({"type": type_, "sequence_number": number, **members})
    return f"event: {type_}\ndata: {data}\n\n".encode()


def response_events(
    texts: Iterable[str] = ("Hello.",), *, usage: Any = USAGE, ending: str | None = "completed"
) -> list[bytes]:
    """Return the events of a stream with one message. `ending` None leaves out the last event."""
    texts = list(texts)
    whole = "".join(texts)
    body = response_body(whole, usage=usage)
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = body["output"][0]
    part = item["content"][0]
    started = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "content": [], "status": "in_progress"}}),
        ("response.content_part.added", {**position, "part": {**part, "text": ""}}),
        *(("response.output_text.delta", {**position, "delta": text, "logprobs": []}) for text in texts),
        ("response.output_text.done", {**position, "text": whole, "logprobs": []}),
        ("response.content_part.done", {**position, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
    ]
    if ending is not None:
        events.append((f"response.{ending}", {"response": {**body, "status": ending}}))
    return [event(type_, number, **members) for number, (type_, members) in enumerate(events)]


def chat_body(text: str = "Hello.", *, usage: Any = CHAT_USAGE, **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [choice],
        "usage": usage,
    }


def chat_events(texts: Iterable[str] = ("Hello.",), *, usage: Any = None, done: bool = True) -> list[bytes]:
    def chunk(**members: Any) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000}
        data = json.dumps({**base, "model": "gpt-4o-mini-2024-07-18", **members})
        return f"data: {data}\n\n".encode()

    def choice(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])

    events = [
        choice({"role": "assistant", "content": ""}),
        *(choice({"content": text}) for text in texts),
        choice({}, "stop"),
    ]
    if usage is not None:
        events.append(chunk(choices=[], usage=usage))
    return [*events, b"data: [DONE]\n\n"] if done else events

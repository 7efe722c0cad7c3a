"""A raw HTTP client: it sends exact bytes, and records the bytes and the time of each read."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
READ_TIMEOUT_S = 60.0


class RawReply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    reads: list[tuple[float, bytes]]
    """(seconds since the request, bytes) of each read."""
    end: str
    """How the reply ended: chunked, length, eof, reset or silence."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of the server-sent events."""
        text = self.body.decode().replace("\r\n", "\n")
        lines = [line for event in text.split("\n\n") for line in event.split("\n")]
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def text(self) -> str:
        deltas = [choice.get("delta", choice) for chunk in self.chunks for choice in chunk.get("choices", [])]
        return "".join(delta.get("content") or delta.get("text") or "" for delta in deltas)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "How many roads?"}], **fields}


def request_bytes(
    body: Any = None, *, path: str = CHAT, method: str = "POST", mock: str = "", headers: tuple[str, ...] = ()
) -> bytes:
    """Return a request. `mock` is the value of its X-Mock header."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: mock", *headers]
    if mock:
        lines.append(f"X-Mock: {mock}")
    if data or method == "POST":
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


class RawConnection:
    """A connection. `read_reply` reads exactly one reply and buffers the bytes after it for the next call."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), READ_TIMEOUT_S)
        self.buffer = bytearray()
        self.reads: list[tuple[float, bytes]] = []
        self.sent_at = 0.0
        self.end = ""

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sent_at = time.monotonic()
        self.sock.sendall(data)

    def exchange(self, body: Any = None, **request: Any) -> RawReply:
        """Send a request and read its reply."""
        self.send(request_bytes(body, **request))
        return self.read_reply()

    def read_reply(self, *, bodiless: bool = False, timeout: float = READ_TIMEOUT_S) -> RawReply:
        self.sock.settimeout(timeout)
        self.reads = []
        self.end = ""
        head = self._read_until(b"\r\n\r\n")
        if not head.endswith(b"\r\n\r\n"):
            return RawReply(0, {}, head, self.reads, self.end)
        status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        status = int(status_line.split(" ")[1])
        if bodiless or status == 100:
            return RawReply(status, headers, b"", self.reads, "length")
        if "transfer-encoding" in headers:
            body, complete = self._read_chunks()
            return RawReply(status, headers, body, self.reads, "chunked" if complete else self.end)
        if "content-length" in headers:
            size = int(headers["content-length"])
            body = self._read_exactly(size)
            return RawReply(status, headers, body, self.reads, "length" if len(body) == size else self.end)
        while self._receive():
            pass
        return RawReply(status, headers, self._read_exactly(len(self.buffer)), self.reads, self.end)

    def _receive(self) -> bool:
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            self.end = "reset"
            return False
        except TimeoutError:
            self.end = "silence"
            return False
        if not data:
            self.end = "eof"
            return False
        self.reads.append((time.monotonic() - self.sent_at, data))
        self.buffer += data
        return True

    def _read_until(self, delimiter: bytes) -> bytes:
        while (index := self.buffer.find(delimiter)) < 0 and self._receive():
            pass
        return self._read_exactly(index + len(delimiter) if index >= 0 else len(self.buffer))

    def _read_exactly(self, size: int) -> bytes:
        while len(self.buffer) < size and self._receive():
            pass
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def _read_chunks(self) -> tuple[bytes, bool]:
        """Return the body, and whether it is complete."""
        chunks = []
        while True:
            line = self._read_until(b"\r\n")
            if not line.endswith(b"\r\n"):
                return b"".join(chunks) + line, False
            size = int(line, 16)
            data = self._read_exactly(size + 2)
            chunks.append(data[:size])
            if len(data) < size + 2:
                return b"".join(chunks), False
            assert data.endswith(b"\r\n")
            if not size:
                return b"".join(chunks), True

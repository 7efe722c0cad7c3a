"""A raw client for the tests: exact bytes out, exact bytes in, and the time each read returned."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
QUICK = 60.0
"""Seconds after which a read that should have returned is a failure."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    reads: list[tuple[float, bytes]]
    """(seconds since the request, bytes) of each read."""
    end: str
    """How it ended: chunked, length, eof, reset or silence."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """Data of the server-sent events."""
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


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "How many roads?"}], **fields}


def request(
    body: Any = None, *, path: str = CHAT, method: str = "POST", mock: str = "", headers: tuple[str, ...] = ()
) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: mock", *headers]
    if mock:
        lines.append(f"X-Mock: {mock}")
    if data or method == "POST":
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


class Wire:
    """A connection. `answer` reads exactly one reply and keeps what follows for the next."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.sock = socket.create_connection((host, int(port)), QUICK)
        self.held = bytearray()
        self.reads: list[tuple[float, bytes]] = []
        self.began = 0.0
        self.end = ""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.began = time.monotonic()
        self.sock.sendall(data)

    def ask(self, body: Any = None, **how: Any) -> Answer:
        self.send(request(body, **how))
        return self.answer()

    def answer(self, *, bodiless: bool = False, silence: float = QUICK) -> Answer:
        self.sock.settimeout(silence)
        self.reads = []
        self.end = ""
        head = self._until(b"\r\n\r\n")
        if not head.endswith(b"\r\n\r\n"):
            return Answer(0, {}, head, self.reads, self.end)
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        status = int(first.split(" ")[1])
        if bodiless or status == 100:
            return Answer(status, headers, b"", self.reads, "length")
        if "transfer-encoding" in headers:
            body, complete = self._chunks()
            return Answer(status, headers, body, self.reads, "chunked" if complete else self.end)
        if "content-length" in headers:
            size = int(headers["content-length"])
            body = self._exactly(size)
            return Answer(status, headers, body, self.reads, "length" if len(body) == size else self.end)
        while self._fill():
            pass
        return Answer(status, headers, self._exactly(len(self.held)), self.reads, self.end)

    def _fill(self) -> bool:
        try:
            got = self.sock.recv(1 << 18)
        except ConnectionResetError:
            self.end = "reset"
            return False
        except TimeoutError:
            self.end = "silence"
            return False
        if not got:
            self.end = "eof"
            return False
        self.reads.append((time.monotonic() - self.began, got))
        self.held += got
        return True

    def _until(self, mark: bytes) -> bytes:
        while (at := self.held.find(mark)) < 0 and self._fill():
            pass
        return self._exactly(at + len(mark) if at >= 0 else len(self.held))

    def _exactly(self, size: int) -> bytes:
        while len(self.held) < size and self._fill():
            pass
        found = bytes(self.held[:size])
        del self.held[:size]
        return found

    def _chunks(self) -> tuple[bytes, bool]:
        """The body, and whether it came to its end."""
        found = []
        while True:
            line = self._until(b"\r\n")
            if not line.endswith(b"\r\n"):
                return b"".join(found) + line, False
            size = int(line, 16)
            data = self._exactly(size + 2)
            found.append(data[:size])
            if len(data) < size + 2:
                return b"".join(found), False
            assert data.endswith(b"\r\n")
            if not size:
                return b"".join(found), True

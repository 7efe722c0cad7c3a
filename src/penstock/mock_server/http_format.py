"""Bytes of HTTP responses: heads, chunks and server-sent events."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from penstock.mock_server.dialect import Event

LAST_CHUNK = b"0\r\n\r\n"
REASONS = {status.value: status.phrase for status in HTTPStatus}


class EventFormat(NamedTuple):
    """The encoding of server-sent events."""

    chunked: bool = True
    crlf: bool = False
    event_lines: bool = False


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event_bytes(event: Event, form: EventFormat) -> bytes:
    newline = b"\r\n" if form.crlf else b"\n"
    name = event.name or (b"message" if form.event_lines else b"")
    event_line = b"event: " + name + newline if name else b""
    text = event_line + b"data: " + event.data + newline + newline
    return chunk(text) if form.chunked else text


def comment_bytes(form: EventFormat) -> bytes:
    text = b": ping\r\n\r\n" if form.crlf else b": ping\n\n"
    return chunk(text) if form.chunked else text


@lru_cache(maxsize=4096)
def head(
    status: int,
    content_type: str,
    *,
    length: int | None = None,
    chunked: bool = False,
    close: bool = False,
    extra: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """Return the head of a response. With neither a length nor chunks, the body ends when the connection closes."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", f"Content-Type: {content_type}"]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif length is not None:
        lines.append(f"Content-Length: {length}")
    if close:
        lines.append("Connection: close")
    lines.extend(f"{name}: {value}" for name, value in extra)
    return "\r\n".join([*lines, "", ""]).encode("latin-1")

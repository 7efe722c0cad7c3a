"""POST /v1/messages: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.base import (
    Dialect,
    Reply,
    RequestBody,
    StreamReader,
    Usage,
    positive,
    short_text,
    token_count,
)
from penstock.gateway.dialects.media_parts import MediaKind
from penstock.gateway.refusal import Refusal
from penstock.gateway.sse_frames import Frame

__all__ = ["Messages"]

API_VERSION = "2023-06-01"


class MessagesBody(RequestBody):
    max_tokens: Any = None


class MessagesReply(Reply):
    stop_reason: Any = None

    @property
    def finish(self) -> str | None:
        return short_text(self.stop_reason) or ("error" if self.error else None)

    @property
    def reported(self) -> Usage | None:
        return _parse_usage(self.usage)


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Message(msgspec.Struct):
    id: Any = None
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    delta: _Delta | None = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _MessagesReader(StreamReader):
    __slots__ = ("_first_usage",)

    def __init__(self) -> None:
        super().__init__()
        self._first_usage: dict[str, Any] = {}
        """The usage at the start of the message. The one at its end may leave out the input."""

    def read(self, frame: Frame) -> bool:
        if frame.data is None:
            return False
        self.events += 1
        try:
            self._event(_decode_event(frame.data))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the caller gets the bytes as they are
        return False

    def _event(self, event: _Event) -> None:
        if event.message is not None:
            self.id = self.id or short_text(event.message.id)
            if type(event.message.usage) is dict:
                self._first_usage = event.message.usage
                self.usage_at_start = _parse_usage(self._first_usage)
        delta = event.delta
        if delta is not None:
            for text in (delta.text, delta.thinking, delta.partial_json):
                if type(text) is str:
                    self._text.add(text)
            self.finish = short_text(delta.stop_reason) or self.finish
        if type(event.usage) is dict:
            self.usage = _parse_usage({**self._first_usage, **event.usage})
        if event.type == "error":
            self.finish = "error"
        self.terminal = self.terminal or event.type in ("message_stop", "error")


class Messages(Dialect):
    name = "messages"
    path = "/messages"
    body = MessagesBody
    reply = MessagesReply
    provider = adapter = "anthropic"
    default_base = "https://api.anthropic.com/v1"
    api_name = "Messages API"
    id_headers = (*Dialect.id_headers, "request-id")
    input_members = ("system", "messages", "tools")
    media_types: Mapping[str, MediaKind] = {"image": "images", "document": "files"}
    output_members = frozenset({"text", "thinking", "input"})

    def output_limit(self, body: MessagesBody, default: int) -> int:
        return positive(body.max_tokens) or default

    def credential_headers(self, secret: str) -> list[tuple[str, str]]:
        return [("X-Api-Key", secret)]

    def default_headers(self) -> list[tuple[str, str]]:
        return [("anthropic-version", API_VERSION)]

    def stream_reader(self) -> StreamReader:
        return _MessagesReader()

    def error_body(self, refusal: Refusal) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": refusal.type, "message": refusal.message}})

    def error_event(self, kind: str, message: str, sequence: int, code: str | None = None) -> bytes:
        del sequence, code
        event = {"type": "error", "error": {"type": kind, "message": message}}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


def _parse_usage(usage: object) -> Usage | None:
    """Parse a usage object. Its `input_tokens` do not include those that were read from or written to the cache."""
    if type(usage) is not dict or type(usage.get("input_tokens")) is not int:
        return None
    cached = token_count(usage.get("cache_read_input_tokens"))
    written = token_count(usage.get("cache_creation_input_tokens"))
    output = token_count(usage.get("output_tokens"))
    return Usage(token_count(usage["input_tokens"]) + cached + written, output, 0, cached)

"""POST /v1/responses: OpenAI's Responses API."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.base import NO_RAW, Dialect, RequestBody, StreamReader, positive, short_text
from penstock.gateway.dialects.openai import OpenAIReply, PartSearch, parse_usage
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["Responses", "ResponsesBody"]

HEAD_BYTES = 1 << 12
"""In an event that is split into parts: bytes at its beginning that must contain its type."""
_TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_KIND = re.compile(rb'"type"\s*:\s*"(response\.(?:completed|incomplete|failed))"')


class ResponsesBody(RequestBody):
    max_output_tokens: Any = None
    previous_response_id: Any = None
    conversation: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    sequence_number: Any = None
    error: Any = None
    response: msgspec.Raw = NO_RAW


class _Response(msgspec.Struct):
    id: Any = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class _ResponsesReader(StreamReader):
    __slots__ = ("_part_finish", "_parts")

    def __init__(self) -> None:
        super().__init__()
        self._parts = PartSearch()
        self._part_finish: str | None = None
        """How the stream ends if the event that is split into parts is its last one."""

    @property
    def failed(self) -> bool:
        return self.finish in ("failed", "error")

    def read(self, frame: Frame) -> bool:
        data = frame.data
        if data is None:
            if isinstance(frame, Part):
                self._read_part(frame)
            return False
        self.events += 1
        try:
            self._event(_decode_event(data))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the caller gets the bytes as they are
        return False

    def _event(self, event: _Event) -> None:
        if type(event.sequence_number) is int and event.sequence_number > self.sequence:
            self.sequence = event.sequence_number
        if type(event.delta) is str:
            self._text.add(event.delta)
            return
        if (kind := _TERMINAL.get(event.type)) is not None:
            self.finish = kind
            self.terminal = True
        elif event.type == "error" or event.error:
            self.finish = "error"
            self.terminal = True
        if bytes(event.response) and (self.id is None or kind):
            response = _decode_response(event.response)
            self.id = short_text(response.id) or self.id
            if kind:  # the usage in earlier events is not final
                self.usage = parse_usage(response.usage)

    def _read_part(self, part: Part) -> None:
        if part.begins:
            kind = _KIND.search(part.raw[:HEAD_BYTES])
            self._part_finish = None if kind is None else _TERMINAL[kind[1].decode()]
        self._parts.add(part, self)
        if part.ends and self._part_finish is not None:
            self.finish = self._part_finish
            self.terminal = True


class Responses(Dialect):
    name = "responses"
    path = "/responses"
    body = ResponsesBody
    reply = OpenAIReply
    provider = "openai"
    default_base = "https://api.openai.com/v1"
    api_name = "Responses API"
    stores_replies = True
    reference_members = ("previous_response_id", "conversation")

    def output_limit(self, body: ResponsesBody, default: int) -> int:
        return positive(body.max_output_tokens) or default

    def references(self, body: ResponsesBody) -> list[tuple[str, str]]:
        conversation = body.conversation
        if conversation is None and body.previous_response_id is None:
            return []
        if type(conversation) is dict:
            conversation = conversation.get("id")
        members = zip(self.reference_members, (body.previous_response_id, conversation), strict=True)
        return [(name, value) for name, value in members if type(value) is str]

    def stream_reader(self) -> StreamReader:
        return _ResponsesReader()

    def error_event(self, kind: str, message: str, sequence: int, code: str | None = None) -> bytes:
        event = {"type": "error", "sequence_number": sequence, "code": code or kind, "message": message, "param": None}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def block_event(
        self, kind: str, message: str, sequence: int, response_id: str | None, model: str, code: str | None
    ) -> bytes:
        response = {
            "id": response_id or "",
            "object": "response",
            "created_at": int(time.time()),
            "status": "failed",
            "error": {"code": code or kind, "message": message, "type": kind},
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }
        event = {"type": "response.failed", "sequence_number": sequence, "response": response}
        return b"event: response.failed\ndata: " + orjson.dumps(event) + b"\n\n"

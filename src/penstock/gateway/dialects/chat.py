"""POST /v1/chat/completions, and the stream that it shares with /v1/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.gateway.dialects.base import (
    NO_RAW,
    Dialect,
    RequestBody,
    StreamReader,
    content_strings,
    positive,
    short_text,
)
from penstock.gateway.dialects.openai import OpenAIReply, PartSearch, include_usage, parse_usage
from penstock.gateway.refusal import Refusal
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["Chat", "ChunkReader"]


class ChatBody(RequestBody):
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = None
    stream_options: Any = None
    messages: msgspec.Raw = NO_RAW


class _Delta(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    id: Any = None
    choices: list[_StreamChoice] | None = None
    usage: Any = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChunkReader(StreamReader):
    """Reads a stream of chunks that ends with `[DONE]`."""

    __slots__ = ("_output_members", "_parts")

    def __init__(self, output_members: frozenset[str]) -> None:
        super().__init__()
        self._output_members = output_members
        self._parts = PartSearch()

    def read(self, frame: Frame) -> bool:
        data = frame.data
        if data is None:
            if isinstance(frame, Part):
                self._parts.add(frame, self)
            return False
        self.events += 1
        if data == b"[DONE]":
            self.terminal = True
            return False
        try:
            chunk = _decode_chunk(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the caller gets the bytes as they are
        self._read_chunk(chunk)
        return chunk.choices == [] and chunk.usage is not None

    def _read_chunk(self, chunk: _Chunk) -> None:
        if self.id is None:
            self.id = short_text(chunk.id)
        if chunk.usage is not None:
            self.usage = parse_usage(chunk.usage) or self.usage
        if chunk.error:
            self.finish = "error"
            self.terminal = True
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self.finish = short_text(choice.finish_reason)
            delta = choice.delta
            if delta is not None:
                for text in (delta.content, delta.refusal, delta.reasoning_content):
                    if type(text) is str:
                        self._text.add(text)
                if delta.tool_calls is not None:
                    for name, text in content_strings(delta.tool_calls):
                        if name in self._output_members:
                            self._text.add(text)
            elif type(choice.text) is str:
                self._text.add(choice.text)


class Chat(Dialect):
    name = "chat"
    path = "/chat/completions"
    body = ChatBody
    reply = OpenAIReply
    has_done_marker = True
    restores_model = True

    def check_body(self, body: ChatBody) -> None:
        if bytes(body.messages).translate(None, b" \t\r\n") in (b"", b"[]", b"null"):
            raise Refusal(400, "invalid_request_error", "`messages` must hold at least one message.", param="messages")

    def output_limit(self, body: ChatBody, default: int) -> int:
        # Servers differ in which of the two names they know, so use the larger limit.
        limit = max(positive(body.max_completion_tokens), positive(body.max_tokens)) or default
        return limit * (positive(body.n) or 1)

    def usage_request(self, body: ChatBody) -> dict[str, Any] | None:
        return include_usage(body.stream_options)

    def stream_reader(self) -> StreamReader:
        return ChunkReader(self.output_members)

"""POST /v1/chat/completions, and the stream that it shares with /v1/completions.

A stream of chunks has no events that end a text before the choice's finish reason. It switches between fields: from reasoning
to content, from one tool call to the next, and perhaps back. At a switch a name is complete; another field may continue, but
later events need not wait for it: its held pieces can be sent later, as events of their own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.gateway.dialects.base import (
    NO_RAW,
    Dialect,
    RequestMembers,
    StreamReader,
    positive,
    short_text,
)
from penstock.gateway.dialects.event_texts import EventTexts
from penstock.gateway.dialects.field_map import NAME, SETTING, SKIP, UNKNOWN, FieldMap, Kind
from penstock.gateway.dialects.openai import OpenAIReply, PartSearch, include_usage, parse_usage
from penstock.gateway.dialects.openai_fields import CHOICES, FORMAT, MESSAGE, PARTS, REPLY, REQUEST, TOOLS
from penstock.gateway.dialects.sse_frames import Frame, Part
from penstock.gateway.dialects.texts import DELTA, Address, TextRef, Texts, walk
from penstock.gateway.refusal import Refusal


class ChatBody(RequestMembers):
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

    def __init__(self) -> None:
        super().__init__()
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
                    for _, ref in walk(delta.tool_calls, MESSAGE.members["tool_calls"], DELTA, address=()).pieces:
                        if ref.kind != NAME:
                            self._text.add(ref.text)
            elif type(choice.text) is str:
                self._text.add(choice.text)


_CHUNK = FieldMap(REPLY, nested={"choices": SKIP})
_CHUNK_HEADER = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_CHOICE = FieldMap(CHOICES, nested={"delta": SKIP, "text": SKIP})
_CHOICES_KEY = frozenset(("choices",))
_PIECES = ("delta", "text")
_USUAL_KEYS = frozenset(("index", "delta", "text", "finish_reason", "logprobs"))


class ChunkTexts(EventTexts):
    """Finds the texts in a stream of chunks."""

    fields = REPLY
    varying_keys = ("obfuscation",)

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[int, list[tuple[Address, Kind]]] = {}
        """Choice index -> the fields with text in the choice's last event with text."""

    def _read(self, payload: dict[str, Any], name: str, found: Texts) -> None:
        choices = payload.get("choices")
        if type(choices) is not list:
            super()._read(payload, name, found)
            return
        self._walk_around(payload, _CHOICES_KEY, _CHUNK, "event", found)
        for position, choice in enumerate(choices):
            if type(choice) is dict:
                self._read_choice(choice, choice.get("index", position), found)
            else:
                walk([choice], UNKNOWN, "event", found)

    def _read_choice(self, choice: dict[str, Any], index: Any, found: Texts) -> None:
        first, first_complete = len(found.pieces), len(found.complete)
        delta = choice.get("delta")
        if type(delta) is dict and len(delta) == 1 and type(delta.get("content")) is str and "text" not in choice:
            if delta["content"]:  # the usual case
                address = (index, "delta", "content")
                found.pieces.append((address, TextRef(delta, "content", delta["content"], DELTA)))
        else:
            pieces = {key: choice[key] for key in _PIECES if choice.get(key)}
            walk(pieces, CHOICES, "event", found, (index,))
            for ref in (*found.complete[first_complete:], *[ref for _, ref in found.pieces[first:]]):
                if isinstance(ref, TextRef) and ref.container is pieces:
                    ref.container = choice
        ended, is_numbered = choice.get("finish_reason"), type(index) is int
        if ended is not None or not is_numbered or not choice.keys() <= _USUAL_KEYS or choice.get("logprobs"):
            walk(choice, _CHOICE, "event", found)
        if is_numbered and len(found.pieces) > first:
            self._switch_fields(index, found, found.pieces[first:])
        if ended:
            found.ended.append((index,))
            if is_numbered:
                self._fields.pop(index, None)

    def _switch_fields(self, index: int, found: Texts, pieces: list[tuple[Address, TextRef]]) -> None:
        """Record the fields that have text now, and add those that had text before and have none now."""
        fields = [(address, ref.kind) for address, ref in pieces]
        before = self._fields.get(index, [])
        if before == fields:
            return
        self._fields[index] = fields
        for address, kind in before:
            if (address, kind) not in fields:
                (found.ended if kind == NAME else found.switched).append(address)

    def separate(self, payload: dict[str, Any], address: Address, text: str) -> dict[str, Any] | None:
        index, *steps = address
        choice: Any = text
        for step in reversed(steps):
            if type(step) is str:
                choice = {step: choice}
            elif type(step) is int:
                choice = [{"index": step, **choice} if type(choice) is dict else choice]
            else:
                return None
        header = {name: payload[name] for name in _CHUNK_HEADER if name in payload}
        return {**header, "choices": [{"index": index, **choice, "finish_reason": None}]}


_FUNCTIONS = FieldMap(TOOLS, string=SETTING)


class Chat(Dialect):
    name = "chat"
    path = "/chat/completions"
    body = ChatBody
    reply = OpenAIReply
    has_done_marker = True
    restores_model = True
    request_fields = FieldMap(
        REQUEST,
        text="chat_template",
        free="documents",
        nested={
            "messages": MESSAGE,
            "functions": _FUNCTIONS,
            "function_call": _FUNCTIONS,
            "response_format": FORMAT,
            "audio": FieldMap(settings="format voice"),
            "prediction": FieldMap(settings="type", nested={"content": PARTS}),
        },
    )
    reply_fields = REPLY
    event_texts = ChunkTexts

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
        return ChunkReader()

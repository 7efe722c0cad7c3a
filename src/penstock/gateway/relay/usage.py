"""Read token usage, the provider's id and the finish reason from replies, without changing them.

A stream is read event by event as it passes, and nothing of it is kept. An event that is split into parts because of its
size (a terminal event repeats the whole answer) is only searched at its beginning and at its end, where its usage is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from penstock.gateway.relay.token_estimate import estimate_tokens
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["StreamReader", "Usage", "input_estimate", "read_reply"]

HEAD_BYTES = 1 << 12
TAIL_BYTES = 1 << 16
"""In an event that is split into parts: bytes that must contain its type, and its usage."""
_RESPONSES = ("input_tokens", "output_tokens", "output_tokens_details", "input_tokens_details")
_CHAT = ("prompt_tokens", "completion_tokens", "completion_tokens_details", "prompt_tokens_details")
_MAX_TOKENS = 10**12
_MAX_TEXT_CHARS = 256
"""Bounds for numbers and texts of an upstream."""
_TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_FAILED = ("failed", "error")
"""Finish reasons of a failure, even with status 200."""


class Usage:
    """Token counts as the provider reported them."""

    __slots__ = ("cached", "input", "output", "reasoning")

    def __init__(self, input_: int, output: int, reasoning: int, cached: int) -> None:
        self.input = input_
        self.output = output
        self.reasoning = reasoning
        self.cached = cached


def _parse_usage(usage: object) -> Usage | None:
    """Parse a usage object of the Responses API (`input_tokens`) or of the chat API (`prompt_tokens`)."""
    if type(usage) is not dict:
        return None
    if "input_tokens" in usage:
        names = _RESPONSES
    elif "prompt_tokens" in usage:
        names = _CHAT
    else:
        return None
    input_, output, reasoning, cached = names
    if type(usage[input_]) is not int:
        return None
    return Usage(
        _count(usage[input_]),
        _count(usage.get(output)),
        _detail(usage[reasoning], "reasoning_tokens") if reasoning in usage else 0,
        _detail(usage[cached], "cached_tokens") if cached in usage else 0,
    )


def _count(value: object) -> int:
    return min(max(0, value), _MAX_TOKENS) if type(value) is int else 0


def _detail(details: object, member: str) -> int:
    return _count(details.get(member)) if type(details) is dict else 0


# -- whole replies --------------------------------------------------------------------------------------------------------


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class Reply(msgspec.Struct):
    """The members of a whole reply that the gateway reads."""

    id: Any = None
    status: Any = None
    usage: Any = None
    error: Any = None
    model: msgspec.Raw = msgspec.Raw(b"")
    choices: list[_Choice] | None = None

    @property
    def name(self) -> str | None:
        return _short_text(self.id)

    @property
    def finish(self) -> str | None:
        if self.choices:
            return _short_text(self.choices[0].finish_reason)
        return _short_text(self.status) or ("error" if self.error else None)

    @property
    def failed(self) -> bool:
        return bool(self.error) or self.finish in _FAILED

    @property
    def reported(self) -> Usage | None:
        return _parse_usage(self.usage)


_decode_reply = msgspec.json.Decoder(Reply).decode


def read_reply(body: bytes) -> Reply:
    """Parse a whole reply. Raise ValueError if it is not JSON; return an empty Reply for JSON of another shape."""
    try:
        return _decode_reply(body)
    except msgspec.ValidationError:
        orjson.loads(body)
        return Reply()
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("not JSON") from None


def text_tokens(body: bytes) -> int:
    """Estimate the output tokens of a whole reply that reports no usage."""
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 0
    return _output_tokens(reply)


_OUTPUT = frozenset({"text", "content", "arguments", "refusal", "input", "reasoning_content", "output"})
_NO_INPUT = frozenset({"type", "role", "id", "file_data"})


def _output_tokens(value: object) -> int:
    return sum(estimate_tokens(text) for name, text in _strings(value) if name in _OUTPUT)


def input_estimate(body: bytes) -> int:
    """Estimate the input tokens of a request from its content strings. Data URLs (images, files) are not counted."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return estimate_tokens(len(body))
    if not isinstance(request, dict):
        return 0
    members = ("input", "instructions", "messages", "prompt", "tools", "text", "response_format")
    content = {member: request.get(member) for member in members}
    return sum(
        estimate_tokens(text)
        for name, text in _strings(content)
        if name not in _NO_INPUT and not text.startswith("data:")
    )


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Yield every string with the key of its member, in no particular order. Not recursive, because a body may be nested
    deeper than Python's recursion limit."""
    stack = [("", value)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            stack.extend(value.items())
        elif isinstance(value, list):
            stack.extend((name, member) for member in value)


# -- streams --------------------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct):
    """An event of the Responses API."""

    type: str = ""
    delta: Any = None
    sequence_number: Any = None
    error: Any = None
    response: msgspec.Raw = msgspec.Raw(b"")


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
    """An event of the chat and completions APIs."""

    id: Any = None
    choices: list[_StreamChoice] | None = None
    usage: Any = None
    error: Any = None


class _Response(msgspec.Struct):
    id: Any = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*+\})*+\})')
_KIND = re.compile(rb'"type"\s*:\s*"(response\.(?:completed|incomplete|failed))"')


class StreamReader:
    """Reads a stream frame by frame; its attributes hold what it has read so far."""

    __slots__ = (
        "_responses",
        "_tail",
        "events",
        "finish",
        "id",
        "sequence",
        "terminal",
        "tokens",
        "usage",
    )

    def __init__(self, route: Route) -> None:
        self._responses = route == "responses"
        self._tail = bytearray()
        self.events = 0
        self.id: str | None = None
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.terminal = False
        """True once the event that ends the stream has passed."""
        self.sequence = -1
        """The highest sequence number so far."""
        self.tokens = 0
        """Estimated output tokens so far."""

    @property
    def failed(self) -> bool:
        return self.finish in _FAILED

    def read(self, frame: Frame) -> None:
        data = frame.data
        if data is None:
            if isinstance(frame, Part):
                self._read_part(frame)
            return
        self.events += 1
        try:
            if self._responses:
                self._event(_decode_event(data))
            elif data == b"[DONE]":
                self.terminal = True
            else:
                self._chunk(_decode_chunk(data))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return  # the caller gets the bytes as they are

    def _event(self, event: _Event) -> None:
        if type(event.sequence_number) is int and event.sequence_number > self.sequence:
            self.sequence = event.sequence_number
        if type(event.delta) is str:
            self.tokens += estimate_tokens(event.delta)
            return
        if (kind := _TERMINAL.get(event.type)) is not None:
            self.finish = kind
            self.terminal = True
        elif event.type == "error" or event.error:
            self.finish = "error"
            self.terminal = True
        if bytes(event.response) and (self.id is None or kind):
            response = _decode_response(event.response)
            self.id = _short_text(response.id) or self.id
            if kind:  # the usage in earlier events is not final
                self.usage = _parse_usage(response.usage)

    def _chunk(self, chunk: _Chunk) -> None:
        if self.id is None:
            self.id = _short_text(chunk.id)
        if chunk.usage is not None:
            self.usage = _parse_usage(chunk.usage) or self.usage
        if chunk.error:
            self.finish = "error"
            self.terminal = True
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self.finish = _short_text(choice.finish_reason)
            delta = choice.delta
            if delta is not None:
                for text in (delta.content, delta.refusal, delta.reasoning_content):
                    if type(text) is str:
                        self.tokens += estimate_tokens(text)
                if delta.tool_calls is not None:
                    self.tokens += _output_tokens(delta.tool_calls)
            elif type(choice.text) is str:
                self.tokens += estimate_tokens(choice.text)

    def _read_part(self, part: Part) -> None:
        """Search for type and usage. Quotes within strings are escaped, so a match is a member."""
        tail = self._tail
        if part.begins and (kind := _KIND.search(part.raw[:HEAD_BYTES])) is not None:
            self.finish = _TERMINAL[kind[1].decode()]
        tail += part.raw
        if len(tail) > 2 * TAIL_BYTES:  # trim rarely: each time copies the rest
            del tail[:-TAIL_BYTES]
        if not part.ends:
            return
        self.events += 1
        usages = _USAGE.findall(tail[-TAIL_BYTES:])
        tail.clear()
        if usages:
            try:
                self.usage = _parse_usage(orjson.loads(usages[-1])) or self.usage
            except orjson.JSONDecodeError:
                return
            self.terminal = self._responses and self.finish is not None


def _short_text(value: object) -> str | None:
    return value[:_MAX_TEXT_CHARS] if type(value) is str else None

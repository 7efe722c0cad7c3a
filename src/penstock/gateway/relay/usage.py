"""What a reply says about itself: token counts, the provider's id, how it ended. Read on a copy; the bytes go their way.

A stream is read event by event as it passes, and nothing of it is kept. Of an event that is too large to be whole (a
terminal event repeats the whole answer) only the end is read, where its usage stands.
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
"""Of an event that comes in parts: where its type must stand, and its usage."""
_RESPONSES = ("input_tokens", "output_tokens", "output_tokens_details", "input_tokens_details")
_CHAT = ("prompt_tokens", "completion_tokens", "completion_tokens_details", "prompt_tokens_details")
_MOST = 10**12
_LONGEST = 256
"""Of numbers and names that an upstream makes up."""
_TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_FAILED = ("failed", "error")
"""Ends that are none of a success, whatever the status says."""


class Usage:
    """Token counts as the provider reported them."""

    __slots__ = ("cached", "input", "output", "reasoning")

    def __init__(self, input_: int, output: int, reasoning: int, cached: int) -> None:
        self.input = input_
        self.output = output
        self.reasoning = reasoning
        self.cached = cached


def _usage(found: object) -> Usage | None:
    """Both dialects: input_tokens and output_tokens, or prompt_tokens and completion_tokens."""
    if type(found) is not dict:
        return None
    if "input_tokens" in found:
        names = _RESPONSES
    elif "prompt_tokens" in found:
        names = _CHAT
    else:
        return None
    input_, output, reasoning, cached = names
    if type(found[input_]) is not int:
        return None
    return Usage(
        _count(found[input_]),
        _count(found.get(output)),
        _detail(found[reasoning], "reasoning_tokens") if reasoning in found else 0,
        _detail(found[cached], "cached_tokens") if cached in found else 0,
    )


def _count(value: object) -> int:
    return min(max(0, value), _MOST) if type(value) is int else 0


def _detail(details: object, member: str) -> int:
    return _count(details.get(member)) if type(details) is dict else 0


# -- whole replies --------------------------------------------------------------------------------------------------------


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class Reply(msgspec.Struct):
    """What is read of a whole reply without building the rest of it."""

    id: Any = None
    status: Any = None
    usage: Any = None
    error: Any = None
    model: msgspec.Raw = msgspec.Raw(b"")
    choices: list[_Choice] | None = None

    @property
    def name(self) -> str | None:
        return _text(self.id)

    @property
    def finish(self) -> str | None:
        if self.choices:
            return _text(self.choices[0].finish_reason)
        return _text(self.status) or ("error" if self.error else None)

    @property
    def failed(self) -> bool:
        return bool(self.error) or self.finish in _FAILED

    @property
    def reported(self) -> Usage | None:
        return _usage(self.usage)


_decode_reply = msgspec.json.Decoder(Reply).decode


def read_reply(body: bytes) -> Reply:
    """Raises ValueError for what is not JSON. JSON of another shape is a reply that says nothing about itself."""
    try:
        return _decode_reply(body)
    except msgspec.ValidationError:
        orjson.loads(body)
        return Reply()
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("not JSON") from None


def text_tokens(body: bytes) -> int:
    """An estimate of the tokens in a whole reply that reports none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 0
    return _output_tokens(found)


_OUTPUT = frozenset({"text", "content", "arguments", "refusal", "input", "reasoning_content", "output"})
_NO_INPUT = frozenset({"type", "role", "id", "file_data"})


def _output_tokens(value: object) -> int:
    return sum(estimate_tokens(text) for name, text in _strings(value) if name in _OUTPUT)


def input_estimate(body: bytes) -> int:
    """Tokens of a request: every string of it that is content. Data URLs (images, files) are not text."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return estimate_tokens(len(body))
    if not isinstance(found, dict):
        return 0
    members = ("input", "instructions", "messages", "prompt", "tools", "text", "response_format")
    given = {member: found.get(member) for member in members}
    return sum(
        estimate_tokens(text)
        for name, text in _strings(given)
        if name not in _NO_INPUT and not text.startswith("data:")
    )


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every string in it, with the key that it stands under, in no order. A body may be nested deeper than Python calls
    functions, and what a caller or an upstream nests must not keep its tokens from being counted."""
    left = [("", value)]
    while left:
        name, value = left.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            left.extend(value.items())
        elif isinstance(value, list):
            left.extend((name, member) for member in value)


# -- streams --------------------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct):
    """An event of the Responses dialect."""

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
    """An event of the chat and completions dialects."""

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
    """Give it what passes, frame by frame; what it knows is in its members."""

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
        """The event that ends a stream of this dialect has passed."""
        self.sequence = -1
        """The highest sequence number that has passed."""
        self.tokens = 0
        """An estimate of the tokens in the text that has passed."""

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
            return  # not for us to judge: the caller gets the bytes as they are

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
            self.id = _text(response.id) or self.id
            if kind:  # what stands in an earlier event is not final
                self.usage = _usage(response.usage)

    def _chunk(self, chunk: _Chunk) -> None:
        if self.id is None:
            self.id = _text(chunk.id)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage) or self.usage
        if chunk.error:
            self.finish = "error"
            self.terminal = True
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self.finish = _text(choice.finish_reason)
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
        """Quotes inside a string are escaped, so what is found in a part is a member."""
        tail = self._tail
        if part.begins and (kind := _KIND.search(part.raw[:HEAD_BYTES])) is not None:
            self.finish = _TERMINAL[kind[1].decode()]
        tail += part.raw
        if len(tail) > 2 * TAIL_BYTES:  # not at every part: each time moves what stays
            del tail[:-TAIL_BYTES]
        if not part.ends:
            return
        self.events += 1
        found = _USAGE.findall(tail[-TAIL_BYTES:])
        tail.clear()
        if found:
            try:
                self.usage = _usage(orjson.loads(found[-1])) or self.usage
            except orjson.JSONDecodeError:
                return
            self.terminal = self._responses and self.finish is not None


def _text(value: object) -> str | None:
    return value[:_LONGEST] if type(value) is str else None

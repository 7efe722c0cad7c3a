"""What the dialects of OpenAI share: usage, whole replies, and the search in events that are split into parts."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.base import Reply, StreamReader, Usage, short_text, token_count
from penstock.gateway.dialects.sse_frames import Part

TAIL_BYTES = 1 << 16
"""In an event that is split into parts: bytes at its end that must contain its usage."""
_RESPONSES = ("input_tokens", "output_tokens", "output_tokens_details", "input_tokens_details")
_CHAT = ("prompt_tokens", "completion_tokens", "completion_tokens_details", "prompt_tokens_details")
_FAILED = ("failed", "error")
"""Finish reasons of a failure, even with status 200."""
_UNFINISHED = ("queued", "in_progress")
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*+\})*+\})')


def parse_usage(usage: object) -> Usage | None:
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
        token_count(usage[input_]),
        token_count(usage.get(output)),
        _detail(usage[reasoning], "reasoning_tokens") if reasoning in usage else 0,
        _detail(usage[cached], "cached_tokens") if cached in usage else 0,
    )


def include_usage(options: object) -> dict[str, Any] | None:
    """Return the `stream_options` of a request with `include_usage` added; None if they have it, or are no object."""
    if options is None:
        return {"include_usage": True}
    if type(options) is not dict or options.get("include_usage") is True:
        return None
    return {**options, "include_usage": True}


def _detail(details: object, member: str) -> int:
    return token_count(details.get(member)) if type(details) is dict else 0


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class OpenAIReply(Reply):
    """A whole reply of any route: some servers answer in another dialect than the request's."""

    status: Any = None
    choices: list[_Choice] | None = None

    @property
    def finish(self) -> str | None:
        if self.choices:
            return short_text(self.choices[0].finish_reason)
        return short_text(self.status) or ("error" if self.error else None)

    @property
    def failed(self) -> bool:
        return bool(self.error) or (self.finish if self.choices else self.status) in _FAILED

    @property
    def unfinished(self) -> bool:
        return self.status in _UNFINISHED

    @property
    def reported(self) -> Usage | None:
        return parse_usage(self.usage)


class PartSearch:
    """Searches the end of an event that is split into parts for its usage. Quotes within strings are escaped, so a match
    is a member."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def add(self, part: Part, reader: StreamReader) -> None:
        """Read a part. The reader gets the usage when its event ends."""
        tail = self._tail
        tail += part.raw
        if len(tail) > 2 * TAIL_BYTES:  # trim rarely: each time copies the rest
            del tail[:-TAIL_BYTES]
        if not part.ends:
            return
        reader.events += 1
        usages = _USAGE.findall(tail[-TAIL_BYTES:])
        tail.clear()
        if usages:
            with contextlib.suppress(orjson.JSONDecodeError):
                reader.usage = parse_usage(orjson.loads(usages[-1])) or reader.usage

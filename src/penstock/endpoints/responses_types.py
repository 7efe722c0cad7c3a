"""The objects of the Responses API as they are read: typed and fast first, and field by field where a server departs
from the types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from penstock.endpoints.openai_types import UNREADABLE, mended
from penstock.endpoints.usage import WireUsage, usage_of

__all__ = [
    "Event",
    "Item",
    "Part",
    "Response",
    "decode_event",
    "decode_events",
    "item_of",
    "part_of",
    "response_of",
    "texts_of",
]

T = TypeVar("T", bound=msgspec.Struct)

_EMPTY = msgspec.Raw()


class Event(msgspec.Struct):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    command_index: int | None = None
    # what a finished text is called, by its kind
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    command: str | None = None
    code: str | None = None
    """Of a code interpreter, or of an error."""
    part: msgspec.Raw = _EMPTY
    item: msgspec.Raw = _EMPTY
    response: msgspec.Raw = _EMPTY
    message: Any = None
    error: Any = None


class Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    code: str | None = None


class Response(msgspec.Struct):
    id: str | None = None
    object: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    output_text: str | None = None
    usage: WireUsage | None = None
    error: Any = None
    incomplete_details: Any = None
    message: Any = None


_decode_event = msgspec.json.Decoder(Event).decode
_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_part = msgspec.json.Decoder(Part).decode
_decode_item = msgspec.json.Decoder(Item).decode
_decode_response = msgspec.json.Decoder(Response).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_KINDS = {
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "summary_text": "summary",
}
"""Of content parts."""


def decode_events(data: list[bytes]) -> list[Event] | None:
    """All at once; None when one of them is not as the types say."""
    try:
        events = _decode_events(b"[" + b",".join(data) + b"]")
    except UNREADABLE:
        return None
    return events if len(events) == len(data) else None  # an event can hold two objects with a comma between them


def decode_event(data: bytes) -> Event:
    """Raises ValueError or RecursionError for what is not JSON."""
    try:
        return _decode_event(data)
    except UNREADABLE:
        return _lenient(data, Event)


def response_of(data: bytes | msgspec.Raw) -> Response:
    """Raises ValueError or RecursionError for what is not JSON."""
    try:
        return _decode_response(data)
    except UNREADABLE:
        return _lenient(bytes(data), Response)


def item_of(data: msgspec.Raw) -> Item:
    """An item without a type for what is not JSON."""
    try:
        return _decode_item(data)
    except UNREADABLE:
        pass
    try:
        return _lenient(bytes(data), Item)
    except (ValueError, RecursionError):
        return Item()


def part_of(data: msgspec.Raw) -> tuple[str, str]:
    """(kind, text) of a content part."""
    try:
        part = _decode_part(data)
    except UNREADABLE:
        part = _lenient(bytes(data), Part)
    return _KINDS.get(part.type, "text"), part.text or part.refusal or ""


def texts_of(item: Item) -> Iterator[tuple[str, int, str]]:
    """(kind, index, text) of each piece of text in an output item."""
    if item.type == "message":
        for index, part in enumerate(item.content or ()):
            yield _KINDS.get(part.type, "text"), index, part.text or part.refusal or ""
    elif item.type == "reasoning":
        for index, part in enumerate(item.summary or ()):
            yield "summary", index, part.text or ""
        for index, part in enumerate(item.content or ()):
            yield "reasoning", index, part.text or ""
    elif item.type in ("function_call", "mcp_call", "custom_tool_call"):
        yield "arguments", 0, item.arguments or item.input or ""
    elif item.type == "code_interpreter_call":
        yield "code", 0, item.code or ""


def _lenient(data: bytes, kind: type[T]) -> T:
    """Every field that has the right type, and none of the others."""
    try:
        # Halves of characters, which the typed decoder refuses, are the one fault that can be mended beforehand.
        found = _decode_fields(mended(json.dumps(json.loads(data), ensure_ascii=False)).encode())
    except UNREADABLE:
        json.loads(data)  # it is JSON all the same, or this raises
        return kind()
    good: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = found.get(field.encode_name)
        if value is None:
            continue
        try:
            good[field.name] = msgspec.json.decode(value, type=field.type)
        except msgspec.ValidationError:
            if field.name == "usage":
                good[field.name] = usage_of(msgspec.json.decode(value))
    return kind(**good)

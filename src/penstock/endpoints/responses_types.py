"""The JSON objects of Responses API replies, and their decoding.

A typed decoder is tried first. An object that it refuses is decoded again field by field, without the fields that have
another type than the API says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from penstock.endpoints.json_replies import UNREADABLE, without_lone_surrogates
from penstock.endpoints.usage import WireUsage, parse_usage

T = TypeVar("T", bound=msgspec.Struct)

_EMPTY = msgspec.Raw()


class Event(msgspec.Struct):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    command_index: int | None = None
    # the texts of done_text events, by kind
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    input: str | None = None
    command: str | None = None
    code: str | None = None
    """The code of a code interpreter call, or of an error."""
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


_decoders: dict[type[msgspec.Struct], Any] = {
    struct: msgspec.json.Decoder(struct).decode for struct in (Event, Part, Item, Response)
}
_typed_events = msgspec.json.Decoder(list[Event]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_PART_KINDS = {
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "reasoning",
    "summary_text": "summary",
}
"""Kinds of text by the types of content parts."""


def decode_events(data: list[bytes]) -> list[Event] | None:
    """Decode all events in one call; None if the typed decoder refuses one."""
    try:
        events = _typed_events(b"[" + b",".join(data) + b"]")
    except UNREADABLE:
        return None
    return events if len(events) == len(data) else None  # false if an event holds two objects with a comma between them


def decode(data: bytes | msgspec.Raw, struct: type[T]) -> T:
    """Raise ValueError or RecursionError if the data is not JSON."""
    try:
        decoded: T = _decoders[struct](data)
    except UNREADABLE:
        return _decode_leniently(bytes(data), struct)
    return decoded


def decode_item(data: msgspec.Raw) -> Item:
    """Decode an output item; an empty one if the data is not JSON."""
    try:
        return decode(data, Item)
    except UNREADABLE:
        return Item()


def decode_part(data: msgspec.Raw) -> tuple[str, str]:
    """Return the kind and the text of a content part."""
    part = decode(data, Part)
    return _PART_KINDS.get(part.type, "text"), part.text or part.refusal or ""


def item_texts(item: Item) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, index, text) for each text of an output item."""
    if item.type == "message":
        for index, part in enumerate(item.content or ()):
            yield _PART_KINDS.get(part.type, "text"), index, part.text or part.refusal or ""
    elif item.type == "reasoning":
        for index, part in enumerate(item.summary or ()):
            yield "summary", index, part.text or ""
        for index, part in enumerate(item.content or ()):
            yield "reasoning", index, part.text or ""
    elif item.type in ("function_call", "mcp_call", "custom_tool_call"):
        yield "arguments", 0, item.arguments or item.input or ""
    elif item.type == "code_interpreter_call":
        yield "code", 0, item.code or ""


def _decode_leniently(data: bytes, struct: type[T]) -> T:
    """Decode an object field by field; leave out fields of the wrong type. Raise ValueError if the data is not JSON."""
    try:
        # The typed decoder also refuses lone surrogates; those can be replaced beforehand.
        fields = _decode_fields(without_lone_surrogates(data))
    except UNREADABLE:
        json.loads(data)  # raises if the data is not JSON
        return struct()
    valid: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        value = fields.get(field.encode_name)
        if value is None:
            continue
        try:
            valid[field.name] = msgspec.json.decode(value, type=field.type)
        except msgspec.ValidationError:
            if field.name == "usage":
                valid[field.name] = parse_usage(msgspec.json.decode(value))
    return struct(**valid)

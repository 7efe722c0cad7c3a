"""The grammar of pairs: `--extra-inputs` keeps types, `--header` keeps strings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from penstock.errors import UserError

__all__ = ["extra_fields", "headers", "value_of"]

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_WHOLE = "payload_template"
"""Takes the rest of its argument, because a template has commas and braces of its own."""
_FRAMING = frozenset(("content-length", "transfer-encoding"))


def extra_fields(text: str, spelling: str) -> list[tuple[str, Any]]:
    """`a:1,b:two` or a JSON object. A value that starts with `[`, `{` or `"` is JSON, and commas in it do not part."""
    if text.lstrip().startswith("{"):
        return list(_object(text, spelling).items())
    fields: list[tuple[str, Any]] = []
    rest = text
    while True:
        key, colon, rest = rest.partition(":")
        key = key.strip().strip('"')
        if not colon or not key or "," in key:
            piece = key.partition(",")[0] if "," in key else key
            raise UserError(
                f"{spelling} {text!r} has a part {piece!r} that is not key:value; write key:value pairs apart by "
                'spaces or commas, and put a value that has a comma in it into "quotes" or JSON.'
            )
        if key == _WHOLE:
            return [*fields, (key, rest.strip())]
        value, rest, more = _next_value(rest, key, spelling)
        fields.append((key, value))
        if not more:
            return fields


def value_of(text: str) -> Any:
    """A plain value with its type guessed: what looks like a number, a boolean or null is one."""
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.match(text) and len(text) < 100:
        return int(text)
    if _FLOAT.match(text) and math.isfinite(number := float(text)):
        return number
    return text


def headers(text: str, spelling: str) -> list[tuple[str, str]]:
    """`Name:Value`, never parted at commas, or a JSON object. No value appears in a message."""
    if text.lstrip().startswith("{"):
        return [
            _checked(name, _header_text(name, value, spelling), spelling)
            for name, value in _header_object(text, spelling)
        ]
    name, colon, value = text.partition(":")
    if not colon:
        raise UserError(f"{spelling} must be Name:Value, with a colon between the two (the value given is not shown).")
    return [_checked(name.strip(), value.strip(" \t"), spelling)]


def _next_value(rest: str, key: str, spelling: str) -> tuple[Any, str, bool]:
    """The value at the start of `rest`, what follows its comma, and whether there was a comma."""
    start = rest.lstrip()
    if start[:1] in ("[", "{", '"'):
        try:
            value, end = _DECODER.raw_decode(start)
        except (RecursionError, ValueError) as error:
            if start[0] != '"':
                raise _not_json(f"The value of {key} in {spelling}", error) from None
        else:
            tail = start[end:].lstrip()
            if not tail:
                return value, "", False
            if tail[0] == ",":
                return value, tail[1:], True
            if start[0] != '"':
                raise UserError(
                    f"The value of {key} in {spelling} goes on with {tail!r} after its JSON ends; "
                    "put a comma there, or write a text in quotes."
                )
    text, comma, rest = rest.partition(",")
    return value_of(text.strip()), rest, bool(comma)


def _object(text: str, spelling: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text.strip())
    except (RecursionError, ValueError) as error:
        raise _not_json(f"The value of {spelling}", error) from None
    return dict(value)


def _header_object(text: str, spelling: str) -> list[tuple[str, Any]]:
    try:
        return list(_DECODER.decode(text.strip()).items())
    except (RecursionError, ValueError):
        raise UserError(
            f"{spelling} starts with a brace but is not a JSON object; write Name:Value or valid JSON."
        ) from None


def _header_text(name: str, value: Any, spelling: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise UserError(f"The value of {name} in {spelling} must be a text or a number.")


def _checked(name: str, value: str, spelling: str) -> tuple[str, str]:
    if not _HEADER_NAME.match(name):
        raise UserError(f"{spelling} must be Name:Value, and what is before the colon is not the name of a header.")
    if name.lower() in _FRAMING:
        raise UserError(f"{spelling} cannot set {name}: Penstock sets it from the request body.")
    if any((char < " " and char != "\t") or char == "\x7f" for char in value):
        raise UserError(f"The value of {name} in {spelling} has a control character in it, which HTTP forbids.")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise UserError(
            f"The value of {name} in {spelling} has a character outside Latin-1, which HTTP forbids."
        ) from None
    return name, value


def _not_json(subject: str, error: Exception) -> UserError:
    reason = getattr(error, "msg", str(error))
    return UserError(f'{subject} looks like JSON but is not ({reason}); correct it, or put a text into "quotes".')


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)

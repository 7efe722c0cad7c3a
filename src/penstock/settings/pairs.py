"""Parses key-value pairs: `--extra-inputs` converts values to JSON types, `--header` keeps strings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from penstock.errors import UserError

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_TEMPLATE_KEY = "payload_template"
"""Its value extends to the end of the argument, because a template contains commas and braces."""
_FRAMING = frozenset(("content-length", "transfer-encoding"))
_OWN = frozenset(("accept", "authorization", "connection", "content-type", "host", "user-agent", "x-request-id"))
"""Headers that have a meaning of their own in every request."""


def extra_fields(text: str, spelling: str) -> list[tuple[str, Any]]:
    """Parse `a:1,b:two` or a JSON object. A value that starts with `[`, `{` or `"` is JSON; its commas separate nothing."""
    if text.lstrip().startswith("{"):
        return list(_object(text, spelling).items())
    fields: list[tuple[str, Any]] = []
    rest = text
    while True:
        key, colon, rest = rest.partition(":")
        key = key.strip().strip('"')
        if not colon or not key or "," in key:
            part = key.partition(",")[0] if "," in key else key
            raise UserError(
                f"{spelling} {text!r} has a part {part!r} that is not key:value; separate key:value pairs by spaces or "
                'commas, and write a value that contains a comma in "quotes" or as JSON.'
            )
        if key == _TEMPLATE_KEY:
            return [*fields, (key, rest.strip())]
        value, rest, has_more = _next_value(rest, key, spelling)
        fields.append((key, value))
        if not has_more:
            return fields


def value_of(text: str) -> Any:
    """Convert a text that looks like a number, a boolean or null; return any other text unchanged."""
    lowered = text.lower()
    if lowered in _LITERALS:
        return _LITERALS[lowered]
    if _INTEGER.match(text) and len(text) < 100:
        return int(text)
    if _FLOAT.match(text) and math.isfinite(number := float(text)):
        return number
    return text


def headers(text: str, spelling: str) -> list[tuple[str, str]]:
    """Parse `Name:Value`, which is not split at commas, or a JSON object. No value appears in an error message."""
    if text.lstrip().startswith("{"):
        return [
            _checked(name, _header_text(name, value, spelling), spelling)
            for name, value in _header_object(text, spelling)
        ]
    name, colon, value = text.partition(":")
    if not colon:
        raise UserError(f"{spelling} must be Name:Value, with a colon between name and value (the text is not shown).")
    return [_checked(name.strip(), value.strip(" \t"), spelling)]


def header_name(text: str, spelling: str) -> str:
    """Return the name of a header, or raise `UserError` if it is none that can be chosen."""
    name = text.strip()
    if not _HEADER_NAME.match(name):
        raise UserError(f"{spelling} {text!r} is not a valid header name.")
    if name.lower() in _FRAMING | _OWN:
        raise UserError(
            f"{spelling} cannot be {name}, which has a meaning of its own in every request; choose another name."
        )
    return name


def _next_value(rest: str, key: str, spelling: str) -> tuple[Any, str, bool]:
    """Return the value at the start of `rest`, the text after its comma, and whether there was a comma."""
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
                    f"The value of {key} in {spelling} continues with {tail!r} after the end of its JSON; "
                    "put a comma there, or write a string in quotes."
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
    raise UserError(f"The value of {name} in {spelling} must be a string or a number.")


def _checked(name: str, value: str, spelling: str) -> tuple[str, str]:
    if not _HEADER_NAME.match(name):
        raise UserError(f"{spelling} must be Name:Value, but the text before the colon is not a valid header name.")
    if name.lower() in _FRAMING:
        raise UserError(f"{spelling} cannot set {name}: Penstock sets it from the request body.")
    if any((char < " " and char != "\t") or char == "\x7f" for char in value):
        raise UserError(f"The value of {name} in {spelling} contains a control character, which HTTP forbids.")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise UserError(
            f"The value of {name} in {spelling} contains a character outside Latin-1, which HTTP forbids."
        ) from None
    return name, value


def _not_json(subject: str, error: Exception) -> UserError:
    reason = getattr(error, "msg", str(error))
    return UserError(
        f'{subject} looks like JSON but is not valid ({reason}); correct it, or write a string in "quotes".'
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)

"""Helpers for JSON whose bytes must not change: lone surrogates, nesting, and the positions of errors.

msgspec reads all replayed files, because it returns the position of a value without building it. It refuses lone
surrogate escapes, which RFC 8259 allows, and its messages do not give the exact position of an error.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

TOO_DEEP = "the JSON is nested too deeply; 500 levels are supported"
"""msgspec and json both recurse: at Python's default recursion limit they fail a little below 1,000 levels."""

_HEX = rb"[0-9a-fA-F]"
# A pair, or a first half that the end of the data cuts off from its second, is kept. Group 1 is a lone surrogate.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]%b{2}(?:\\u[dD][c-fC-F]%b{2}|(?:\\(?:u%b{0,3})?)?\Z)|(u[dD][89a-fA-F]%b{2})|.)"
    % (_HEX, _HEX, _HEX, _HEX),
    re.DOTALL,
)


def replace_lone_surrogates(data: bytes) -> bytes:
    """Replace each lone surrogate escape by an escape of the same length, so that no offset changes."""
    return _ESCAPE.sub(lambda escape: rb"\u003f" if escape[1] else escape[0], data)


def is_json(data: bytes) -> bool:
    """Return whether the data is one JSON value. The caller checks that it is UTF-8."""
    return _is_accepted(data) or _is_accepted(replace_lone_surrogates(data))


def _is_accepted(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


class _NotFinite(Exception):
    """The text has NaN or Infinity, which json accepts and RFC 8259 does not."""


def _refuse(_name: str) -> None:
    raise _NotFinite


# Numbers stay text, because int() refuses more than 4,300 digits.
_decoder = json.JSONDecoder(parse_int=str, parse_constant=_refuse)
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"|(-?(?:NaN|Infinity))')


def syntax_error(data: bytes, begin: int | None = None) -> tuple[int, str] | None:
    """Return the offset of the first syntax error and what it is; None if json finds none.

    Look at the value at `begin` and ignore what follows it, or at the whole data if `begin` is None.
    """
    text = data.decode("latin-1")  # one character is one byte, so that the offsets are those in the data
    try:
        if begin is None:
            _decoder.decode(text.rstrip())
        else:
            _decoder.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        reason = error.msg.rstrip(": ").removesuffix(" starting at").removesuffix(" at")
        return error.pos, reason[0].lower() + reason[1:]
    except _NotFinite:
        found = next(found for found in _CONSTANT.finditer(text, begin or 0) if found[1])
        return found.start(1), f"{found[1]} is not a JSON value"
    except RecursionError:
        return begin or 0, TOO_DEEP
    return None


def address(data: Any) -> int:
    """Return the memory address of a buffer. msgspec.Raw does not copy, so that two addresses give an offset."""
    import numpy as np

    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
